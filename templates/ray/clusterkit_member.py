"""A node that joins the Ray of the first one, and leaves with it; what launch.py runs there."""

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress

import clusterkit_ray

BEAT_S = 2
HEAD_SILENCE_S = 20
"""Later than clusterkit itself misses the first node, so that it is blamed, not who misses it."""
OTHERS_TELL_S = 2
"""How long who has lost the first node waits, for that one's own failure to come first."""


def say(words):
    print(f"clusterkit: {words}", flush=True)


def send(connection, message):
    with suppress(OSError):  # whoever reads from it notices as well
        connection.sendall(json.dumps(message).encode() + b"\n")


class Member:
    """A node that joins the cluster of the first one, and leaves with it."""

    def __init__(self, options):
        self.options = options
        self.ray = None
        self.told = {}
        self.connection = None

    def run(self):
        """Do what the head says until it says that this is the end; return the exit code."""
        name, joined = os.environ["CK_NODE_NAME"], False
        self.connection = connect(self.options.start_timeout)
        send(self.connection, {"node": name, "signature": clusterkit_ray.signature(name)})
        threading.Thread(target=self.listen, daemon=True).start()
        beat_at = 0
        while "end" not in self.told:
            if "gone" in self.told:
                say(f"{name} no longer hears the first node")
                time.sleep(OTHERS_TELL_S)
                return 1
            if "join" in self.told and self.ray is None:
                self.ray = clusterkit_ray.Ray(self.options.ray)
            if self.ray and self.ray.ended():
                say(f"Ray has ended on {name}:\n{self.ray.last_words()}")
                return 1
            if self.ray and self.ray.up.is_set() and not joined:
                joined = True
                send(self.connection, {"joined": True})
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + BEAT_S
                send(self.connection, {})
            time.sleep(0.1)
        return self.told["end"]

    def listen(self):
        """Note what the head says, until it has gone."""
        with suppress(OSError, ValueError), self.connection.makefile("r") as lines:
            for line in lines:
                self.told |= json.loads(line)
        self.told["gone"] = True

    def end(self):
        """End the Ray of this node; the head waits for who is to blame, and not for others."""
        if self.ray and self.told.get("end"):
            self.ray.end()
        if self.connection:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
        if self.ray:
            self.ray.end()


def connect(patience_s):
    head, port = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"]) + 1
    deadline = time.monotonic() + patience_s
    while True:
        try:
            # As long a silence later ends what is read from it.
            return socket.create_connection((head, port), timeout=HEAD_SILENCE_S)
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"no Ray head at {head}:{port} after {patience_s} s: {error}")
            time.sleep(0.2)
