"""Let mpirun start its daemons without SSH: each node has called the first one, and waits for them.

mpirun starts a daemon on each node (orted, prted, hydra_pmi_proxy) through a program that it calls
like ssh, with a host and a command. Ours is this file as a program, in the folder of the job on the
first node: it hands the command to `Head` there by agent.sock, and waits until it has ended. Each
node keeps a connection (`Node`) to CK_PORT + 1 of the first node, gets the command, and runs it as
a child of its own. Both sides of a connection send lines of JSON, each with a signature by CK_TOKEN
(HMAC-SHA256), which every node of a submitted job has, over what both sides began with and a count.
"""

import hmac
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

SOCKET = "agent.sock"
START_S = 600
GRACE_S = 5
"""How long a daemon has to end by itself: below the 8 s after which a node's worker kills."""
LOST = 255
"""As ssh's own for a connection that broke."""


class Line:
    """One side of a connection between the first node and another."""

    def __init__(self, connection, *, asks):
        self.connection = connection
        self.asks = asks
        self.lines = connection.makefile("r", encoding="utf-8")
        self.lock = threading.Lock()
        self.sent = self.heard = 0
        own = secrets.token_hex(16)
        connection.sendall(f"{own}\n".encode())
        theirs = self.lines.readline().strip()
        self.start = f"{own} {theirs}" if asks else f"{theirs} {own}"

    def sign(self, by_asker, count, text):
        """Return the signature of one message of one side."""
        words = f"{self.start} {by_asker} {count} {text}".encode()
        return hmac.new(os.environ.get("CK_TOKEN", "").encode(), words, "sha256").hexdigest()

    def send(self, **message):
        """Send a message; nothing where the other side has gone, which whoever reads notices."""
        with self.lock, suppress(OSError):
            text = json.dumps(message)
            line = f"{self.sign(self.asks, self.sent, text)} {text}\n"
            self.sent += 1
            self.connection.sendall(line.encode())

    def messages(self):
        """Yield what the other side sends, until it has gone or is not who it should be."""
        with suppress(OSError, ValueError):
            for line in self.lines:
                signature, _, text = line.rstrip("\n").partition(" ")
                if not hmac.compare_digest(signature, self.sign(not self.asks, self.heard, text)):
                    return
                self.heard += 1
                yield json.loads(text)


class Daemons:
    """The commands that run on this node for mpirun."""

    def __init__(self):
        self.running = []

    def run(self, command):
        """Run a command to its end; return its exit code."""
        daemon = subprocess.Popen(
            ["sh", "-c", command],
            cwd=os.environ["CK_TMP"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.running.append(daemon)
        code = daemon.wait()
        return code if code >= 0 else 128 - code

    def end(self):
        """End what does not end by itself."""
        deadline = time.monotonic() + GRACE_S
        for signum in (None, signal.SIGTERM, signal.SIGKILL):
            for daemon in self.running:
                if signum is not None and daemon.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(daemon.pid, signum)
                with suppress(subprocess.TimeoutExpired):
                    daemon.wait(max(0.2, deadline - time.monotonic()))


def tell_failures(tell):
    """Call `tell` with the exit code of each rank of this node that fails; see mpi_rank.sh."""
    path = os.path.join(os.environ["CK_TMP"], "mpi_failed")  # noqa: PTH118
    os.mkfifo(path)

    def listen():
        # As if to write as well, so that there is no end while no rank writes.
        with os.fdopen(os.open(path, os.O_RDWR), encoding="ascii") as codes:
            for line in codes:
                tell(int(line))

    threading.Thread(target=listen, daemon=True).start()


# What the first node does


class Head:
    """The first node, to which all others come."""

    def __init__(self):
        self.failed = None
        """The exit code of the first rank that was heard to fail."""
        self.others = set(os.environ["CK_NODES"].split()) - {os.environ["CK_NODE_NAME"]}
        self.came = set()
        self.lines = {}
        self.codes = {}
        self.changed = threading.Condition()
        self.daemons = Daemons()
        tell_failures(self.fail)
        self.listen(socket.create_server(("", int(os.environ["CK_PORT"]) + 1)), self.serve_node)
        asked = socket.socket(socket.AF_UNIX)
        here = os.getcwd()  # noqa: PTH109 - a socket's name must be short: it is a relative one
        os.chdir(os.environ["CK_TMP"])
        asked.bind(SOCKET)
        os.chdir(here)
        asked.listen(socket.SOMAXCONN)
        self.listen(asked, self.serve_agent)

    def listen(self, server, serve):
        """Serve each connection by a thread of its own."""

        def accept():
            while True:
                connection, _ = server.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def serve_node(self, connection):
        """Know a node for as long as it is there."""
        connection.settimeout(START_S)
        with connection, suppress(OSError):
            line = Line(connection, asks=False)
            messages = line.messages()
            name = next(messages, {}).get("node")
            with self.changed:
                if name not in self.others - self.came:
                    return
                connection.settimeout(None)
                self.came.add(name)
                self.lines[name] = line
                self.changed.notify_all()
            for message in messages:
                if "failed" in message:
                    self.fail(message["failed"])
                    continue
                with self.changed:
                    self.codes[name, message["ended"]] = message["code"]
                    self.changed.notify_all()
            with self.changed:
                del self.lines[name]
                self.changed.notify_all()

    def fail(self, code):
        """Note that a rank has failed."""
        self.failed = self.failed or code

    def serve_agent(self, connection):
        """Have the command of an agent run, and tell it the exit code."""
        with connection, connection.makefile("r") as lines, suppress(OSError):
            asked = json.loads(lines.readline())
            code = self.run_on(asked["host"], asked["command"], asked["id"])
            connection.sendall(f"{code}\n".encode())

    def run_on(self, name, command, number):
        """Run a command on a node, for as long as that is there; return its exit code."""
        if name in {os.environ["CK_NODE_NAME"], "localhost"}:
            return self.daemons.run(command)
        with self.changed:
            if not self.changed.wait_for(lambda: name in self.lines, START_S):
                print(f"clusterkit: {name} has not come within {START_S} s", flush=True)
                return LOST
            self.lines[name].send(run=number, command=command)
            key = name, number
            self.changed.wait_for(lambda: key in self.codes or name not in self.lines)
            return self.codes.pop(key, LOST)

    def end(self, code):
        """Let every node end with this exit code."""
        with self.changed:
            self.changed.wait_for(lambda: self.came == self.others, GRACE_S)
            for line in self.lines.values():
                line.send(end=code)
            self.changed.wait_for(lambda: not self.lines, 2 * GRACE_S)
        self.daemons.end()


# What every other node does


class Node:
    """A node that does what the first one says."""

    def __init__(self):
        self.daemons = Daemons()
        signal.signal(signal.SIGTERM, self.heed)

    def run(self):
        """Run what comes until the end is told; return the exit code."""
        connection = connect()
        with suppress(OSError):
            line = Line(connection, asks=True)
            line.send(node=os.environ["CK_NODE_NAME"])
            tell_failures(lambda code: line.send(failed=code))
            for message in line.messages():
                if "end" in message:
                    self.daemons.end()
                    return message["end"]
                threading.Thread(target=self.start, args=(line, message), daemon=True).start()
        self.daemons.end()
        name = os.environ["CK_NODE_NAME"]
        print(f"clusterkit: {name} no longer hears the first node", flush=True)
        return 1

    def start(self, line, message):
        """Run a command, and tell how it has ended."""
        line.send(ended=message["run"], code=self.daemons.run(message["command"]))

    def heed(self, *_):
        """End, but let the first node end the ranks in order where it does; on SIGTERM."""
        self.daemons.end()
        os._exit(128 + signal.SIGTERM)


def connect():
    head, port = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"]) + 1
    deadline = time.monotonic() + START_S
    while True:
        try:
            connection = socket.create_connection((head, port), timeout=10)
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"clusterkit: nobody at {head}:{port} after {START_S} s: {error}")
            time.sleep(0.2)
        else:
            connection.settimeout(None)
            return connection


# What mpirun calls in place of ssh


def ask(words):
    while words[0].startswith("-"):
        words = words[1:]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(SOCKET)
        asked = {"host": words[0], "command": " ".join(words[1:]), "id": secrets.token_hex(8)}
        connection.sendall(json.dumps(asked).encode() + b"\n")
        answer = connection.makefile("r").readline().strip()
    return int(answer) if answer else LOST


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1:]))
