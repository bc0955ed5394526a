"""Let mpirun start its daemons without SSH: each node has called the first one, and waits for them.

mpirun starts a daemon on each node (orted, prted, hydra_pmi_proxy) through a program that it calls
like ssh, with a host and a command. Ours is this file as a program, in the folder of the job on the
first node: it hands the command to `Head` there by agent.sock, and waits until it has ended. Each
node keeps a connection (`Node`) to CK_PORT + 1 of the first node, gets the command, and runs it as
a child of its own. clusterkit_peers.py sees to it that nobody else gives or takes commands there.
"""

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

import clusterkit_peers

SOCKET = "agent.sock"
START_S = 600
GRACE_S = 5
"""How long a daemon has to end by itself: below the 8 s after which a node's worker kills."""
MOST = 1 << 20
"""Characters of a command."""
LOST = 255
"""As ssh's own for a connection that broke."""


def send(connection, **message):
    """Send a message; nothing where the other side has gone, which whoever reads notices."""
    with suppress(OSError):
        connection.send(message)


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
    os.mkfifo(path, 0o600)

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
        self.nodes = os.environ["CK_NODES"].split()
        self.others = set(self.nodes) - {os.environ["CK_NODE_NAME"]}
        self.came = set()
        self.lines = {}
        self.codes = {}
        self.changed = threading.Condition()
        self.daemons = Daemons()
        tell_failures(self.fail)
        if self.others:
            self.listen()
        threading.Thread(target=self.serve_agents, args=(agents(),), daemon=True).start()

    def listen(self):
        """Serve the other nodes."""
        member, port = clusterkit_peers.member_of_job("mpi"), int(os.environ["CK_PORT"]) + 1
        try:
            self.listener = clusterkit_peers.Listener(("", port), member, self.serve_node)
        except OSError as error:
            sys.exit(f"clusterkit: error: port {port} of the first node: {error.strerror}")

    def serve_node(self, line):
        """Know a node for as long as it is there."""
        name = self.nodes[line.rank]
        with self.changed:
            if name not in self.others - self.came:
                return
            self.came.add(name)
            self.lines[name] = line
            self.changed.notify_all()
        try:
            for message in line.messages():
                self.note(name, message)
        except clusterkit_peers.PeerError as error:
            print(f"clusterkit: {name} {error}", flush=True)
        finally:
            with self.changed:
                del self.lines[name]
                self.changed.notify_all()

    def note(self, name, message):
        """Note what a node says: that a rank has failed, or how a command has ended."""
        if "failed" in message:
            self.fail(clusterkit_peers.whole(message, "failed", 1, 255))
            return
        number, code = clusterkit_peers.text(message, "ended", 64), message.get("code")
        with self.changed:
            if (name, number) in self.codes:
                self.codes[name, number] = code if code in range(256) else LOST
                self.changed.notify_all()

    def fail(self, code):
        """Note that a rank has failed."""
        self.failed = self.failed or code

    def serve_agents(self, server):
        """Serve each agent by a thread of its own."""
        while True:
            try:
                connection, _ = server.accept()
                threading.Thread(target=self.serve_agent, args=(connection,), daemon=True).start()
            except (OSError, RuntimeError) as error:  # out of descriptors or threads
                print(f"clusterkit: mpirun has to wait: {error}", file=sys.stderr, flush=True)
                time.sleep(1)

    def serve_agent(self, connection):
        """Have the command of an agent run, and tell it the exit code."""
        with connection, connection.makefile("r") as lines, suppress(OSError, ValueError, KeyError):
            request = json.loads(lines.readline())
            code = self.run_on(request["host"], request["command"], request["id"])
            connection.sendall(f"{code}\n".encode())

    def run_on(self, name, command, number):
        """Run a command on a node, for as long as that is there; return its exit code."""
        if name in {os.environ["CK_NODE_NAME"], "localhost"}:
            return self.daemons.run(command)
        with self.changed:
            if not self.changed.wait_for(lambda: name in self.lines, START_S):
                refused = f" ({self.listener.refused})" if self.listener.refused else ""
                print(f"clusterkit: {name} has not come within {START_S} s{refused}", flush=True)
                return LOST
            line, key = self.lines[name], (name, number)
            self.codes[key] = None
        send(line, run=number, command=command)
        with self.changed:
            self.changed.wait_for(lambda: self.codes[key] is not None or name not in self.lines)
            code = self.codes.pop(key)
            return LOST if code is None else code

    def end(self, code):
        """Let every node end with this exit code."""
        with self.changed:
            self.changed.wait_for(lambda: self.came == self.others, GRACE_S)
            lines = list(self.lines.values())
        for line in lines:
            send(line, end=code)
        with self.changed:
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
        head = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"]) + 1
        member = clusterkit_peers.member_of_job("mpi")
        try:
            line = clusterkit_peers.connect_within(START_S, head, member)
            return self.follow(line)
        except clusterkit_peers.PeerError as error:
            print(f"clusterkit: {error}", flush=True)
            return 1
        finally:
            self.daemons.end()

    def follow(self, line):
        """Run what the first node says, until it says how the job has ended."""
        tell_failures(lambda code: send(line, failed=code))
        for message in line.messages():
            if "end" in message:
                return clusterkit_peers.whole(message, "end", 0, 255)
            number = clusterkit_peers.text(message, "run", 64)
            words = (line, number, clusterkit_peers.text(message, "command", MOST))
            threading.Thread(target=self.start, args=words, daemon=True).start()
        name = os.environ["CK_NODE_NAME"]
        raise clusterkit_peers.PeerError(f"{name} no longer hears the first node: {line.fault}")

    def start(self, line, number, command):
        """Run a command, and tell how it has ended."""
        send(line, ended=number, code=self.daemons.run(command))

    def heed(self, *_):
        """End, but let the first node end the ranks in order where it does; on SIGTERM."""
        self.daemons.end()
        os._exit(128 + signal.SIGTERM)


def agents():
    """Return a socket for the agents of this user alone."""
    server = socket.socket(socket.AF_UNIX)
    here = os.getcwd()  # noqa: PTH109 - a socket's name must be short: it is a relative one
    os.chdir(os.environ["CK_TMP"])
    server.bind(SOCKET)
    os.chmod(SOCKET, 0o600)  # noqa: PTH101 - nobody can connect before it listens
    os.chdir(here)
    server.listen(socket.SOMAXCONN)
    return server


# What mpirun calls in place of ssh


def ask(words):
    while words[0].startswith("-"):
        words = words[1:]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(SOCKET)
        request = {"host": words[0], "command": " ".join(words[1:]), "id": secrets.token_hex(8)}
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = connection.makefile("r").readline().strip()
    return int(answer) if answer else LOST


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1:]))
