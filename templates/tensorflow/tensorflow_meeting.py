"""Let the nodes of a job meet at the head's port: who listens where, and when all is over.

Each node sends its ports, free ones that it holds until all are known, and gets the addresses of
all ranks. Later each says when it is `idle`, with nothing to wait for, and hears when it is `over`:
when all are, or have `left` with all done. Where one goes without a word, all others are let go.
"""

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack, suppress

TIMEOUT_S = 300
REACH = 200
"""How far above the job's own port a free one is looked for."""
LONGEST = 1 << 24


class Meeting:
    """This node's line to the head."""

    def __init__(self, count):
        nodes, port = os.environ["CK_NODES"].split(), int(os.environ["CK_PORT"])
        self.rank = int(os.environ["CK_NODE_RANK"])
        self.idle = self.ended = False
        self.held = ExitStack()
        if self.rank == 0:
            listener = socket.create_server(("", port), backlog=len(nodes))
            threading.Thread(target=preside, args=(listener, nodes), daemon=True).start()
        ports = [self.hold_free_port(port + 1) for _ in range(count)]
        self.line = connect(os.environ["CK_HEAD_ADDR"], port)
        send(self.line, {"of": whose(), "node": self.rank, "ports": ports})
        told = receive(self.line, TIMEOUT_S + 10)
        if told is None:
            sys.exit(f"clusterkit: not all nodes of the job came to {nodes[0]}")
        self.addresses = told["addresses"]

    def hold_free_port(self, first):
        """Return a port from `first` on that is nobody's, and ours until all ports are known."""
        for port in range(first, min(first + REACH, 65536)):
            # Not listening: whoever comes too early shall be refused, and try again.
            holder = socket.socket()
            try:
                holder.bind(("", port))
            except OSError:
                holder.close()
            else:
                self.held.enter_context(holder)
                return port
        sys.exit(f"clusterkit: no free port in {first}-{first + REACH - 1} of this node")

    def release_ports(self):
        """Let go of the ports, for those who are to listen there."""
        self.held.close()

    def over(self, idle):
        """Return how this node is to end, where it is to end now."""
        if idle and not self.idle:
            self.idle = True
            send(self.line, "idle")
        return self.verdict() if select.select([self.line], [], [], 0)[0] else None

    def verdict(self):
        """Wait for what the head says; return how this node is to end."""
        self.ended = True
        if receive(self.line) == "over":
            return 0
        print("clusterkit: another node of the job has failed", file=sys.stderr)
        return 1

    def leave(self, code):
        """Return the exit code of this node, whose processes have ended with `code`."""
        if code or self.ended:
            return code
        if self.rank:
            send(self.line, "left")
            return 0
        # The head's own process has to last until all others know.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        send(self.line, "idle")
        return self.verdict()


def preside(listener, nodes):
    """Serve the nodes, on the first of them; closing their lines says that something went wrong."""
    with ExitStack() as stack, suppress(OSError):
        lines = welcome(listener, nodes, stack)
        listener.close()
        addresses = [address for rank in sorted(lines) for address in lines[rank][1]]
        there = {line for line, _ in lines.values()}
        busy = set(there)
        for line in there:
            send(line, {"addresses": addresses})
        while busy:
            for line in select.select(list(there), [], [])[0]:
                said = receive(line)
                if said is None:
                    return
                busy.discard(line)
                if said == "left":
                    there.remove(line)
        for line in there:
            send(line, "over")


def welcome(listener, nodes, stack):
    """Return line and addresses of each node, by rank."""
    deadline = time.monotonic() + TIMEOUT_S
    lines = {}
    while len(lines) < len(nodes):
        listener.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            line, peer = listener.accept()
        except TimeoutError:
            missing = [node for rank, node in enumerate(nodes) if rank not in lines]
            print(f"clusterkit: no word from {' '.join(missing)}", file=sys.stderr, flush=True)
            raise
        stack.enter_context(line)
        keep_alive(line)
        told = receive(line, 10)
        if isinstance(told, dict) and told.get("of") == whose():
            address = address_of(told["node"], nodes, peer[0])
            lines[told["node"]] = line, [f"{address}:{port}" for port in told["ports"]]
    return lines


def address_of(rank, nodes, peer):
    """Return how to reach a node: by its name where that leads to where it came from."""
    if rank == 0:
        peer = os.environ["CK_HEAD_ADDR"]
    try:
        here, there = (
            {info[4][0] for info in socket.getaddrinfo(host, None)} for host in (nodes[rank], peer)
        )
    except OSError:
        return peer
    return nodes[rank] if here & there else peer


def whose():
    return f"{os.environ['CK_JOB_ID']} {os.environ['CK_RESTART_COUNT']}"


def connect(head, port):
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            line = socket.create_connection((head, port), timeout=5)
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"clusterkit: nobody at {head}:{port} after {TIMEOUT_S} s: {error}")
            time.sleep(0.2)
        else:
            keep_alive(line)
            return line


def keep_alive(line):
    """Have something sent in long hours of silence, or firewalls forget the connection."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)


def send(line, what):
    with suppress(OSError):  # the other end has gone: who reads next will see
        line.sendall(json.dumps(what).encode() + b"\n")


def receive(line, timeout_s=None):
    """Return what the other end says next; None where that is nothing, or nonsense."""
    line.settimeout(timeout_s)
    text = b""
    with suppress(OSError, ValueError):
        while not text.endswith(b"\n") and len(text) < LONGEST:
            part = line.recv(1)
            if not part:
                return None
            text += part
        return json.loads(text)
    return None
