"""Where the agents of an elastic job keep what they share: on the first node, for this job alone.

torch's c10d rendezvous keeps a pickle in a TCPStore, which lets whoever reaches its port list its
keys and write them: what strangers wrote there ran as the user of the job. Here agents speak the
protocol of clusterkit_peers.py, which nobody takes part in who does not know the job's token.
"""

import os
import threading
import time
from base64 import b64decode, b64encode
from datetime import timedelta

import clusterkit_peers
from torch.distributed import DistStoreError
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend

ANSWER_S = 60
LOOK_S = 0.05
LONGEST_KEY = 1 << 10
LONGEST_VALUE = 1 << 20
MOST_KEYS = 1 << 20


class Server:
    """The store itself, on the first node."""

    def __init__(self, member):
        self.values = {}
        self.lock = threading.Lock()
        # The nodes of a local job have loopback addresses of their own.
        address = os.environ.get("CK_NODE_ADDR", ""), int(os.environ["CK_PORT"])
        self.listener = clusterkit_peers.Listener(address, member, self.serve)

    def serve(self, line):
        """Do what a node asks for as long as it is there."""
        for message in line.messages():
            line.send({"value": self.answer(message)})

    def answer(self, message):
        """Read, add to or replace a value; return what it is then, None where there is none."""
        key = clusterkit_peers.text(message, "key", LONGEST_KEY)
        with self.lock:
            now = self.values.get(key)
            if "add" in message:
                more = clusterkit_peers.whole(message, "add", -(1 << 31), 1 << 31)
                self.values[key] = str(int(now or 0) + more)
            elif "new" in message and message.get("old", now) == now:
                if len(self.values) >= MOST_KEYS:
                    raise clusterkit_peers.PeerError("has set too many keys")
                self.values[key] = clusterkit_peers.text(message, "new", LONGEST_VALUE)
            return self.values.get(key)


class Line:
    """The connection of this agent to the store, for all of its threads."""

    def __init__(self, member, address, within_s):
        self.line = clusterkit_peers.connect_within(within_s, address, member)
        self.lock = threading.Lock()

    def ask(self, key, **what):
        """Return what the store answers.

        Raises:
            RendezvousConnectionError: the first node has gone.
        """
        with self.lock:
            try:
                self.line.send({"key": key, **what})
                return self.line.receive(ANSWER_S)["value"]
            except (OSError, KeyError) as error:
                self.line.end()
                raise RendezvousConnectionError(f"the first node {error}") from error


class Store:
    """What torchrun's agent calls of a store, with keys of its own."""

    def __init__(self, line, prefix):
        self.line, self.prefix = line, prefix
        self.timeout = timedelta(minutes=5)

    def set_timeout(self, timeout):
        """Let `get` and `wait` take so long."""
        self.timeout = timeout

    def set(self, key, value):
        """Write a value: text, or its bytes."""
        text = value if isinstance(value, str) else value.decode()
        self.line.ask(self.prefix + key, new=text)

    def add(self, key, amount):
        """Add to a number; return it."""
        return int(self.line.ask(self.prefix + key, add=amount))

    def get(self, key, timeout=None):
        """Return a value as soon as there is one."""
        timeout = timeout or self.timeout
        deadline = time.monotonic() + timeout.total_seconds()
        while (value := self.line.ask(self.prefix + key)) is None:
            if time.monotonic() > deadline:
                raise DistStoreError(f"nobody has set {key} within {timeout}")
            time.sleep(LOOK_S)
        return value.encode()

    def wait(self, keys, timeout=None):
        """Wait until all keys are there."""
        for key in keys:
            self.get(key, timeout)

    def multi_get(self, keys):
        """Return several values."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys, values):
        """Write several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)


class Backend(RendezvousBackend):
    """Keeps who trains together: torch's own pickle of it, and as its version the very text."""

    def __init__(self, line, name, key):
        self.line, self.key, self._name = line, key, name

    @property
    def name(self):
        """Return the name under which the registry has it."""
        return self._name

    def get_state(self):
        """Return state and version, None where there is none yet."""
        kept = self.line.ask(self.key)
        return None if kept is None else (b64decode(kept), kept)

    def set_state(self, state, token=None):
        """Replace the state of that version; return state, version, and whether that was done."""
        new = b64encode(state).decode()
        kept = self.line.ask(self.key, old=token, new=new)
        return None if kept is None else (b64decode(kept), kept, kept == new)
