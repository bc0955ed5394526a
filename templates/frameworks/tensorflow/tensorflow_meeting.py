"""Let the nodes of a job meet at the head's port: who listens where, and when all is over.

Each node sends its ports, free ones that it holds until all are known, and gets the addresses of
all ranks. Later each says when it is `idle`, with nothing to wait for, and hears when it is `over`:
when all are, or have `left` with all done. Where one goes without a word, all others are let go.
clusterkit_peers.py sees to it that nobody else takes part.
"""

import os
import signal
import socket
import sys
import threading
from contextlib import ExitStack, suppress

import clusterkit_peers

TIMEOUT_S = 300
REACH = 200
"""How far above the job's own port a free one is looked for."""
MOST_PORTS = 4096
"""How many processes a node may have."""


class Meeting:
    """This node's line to the head."""

    def __init__(self, count):
        nodes, port = os.environ["CK_NODES"].split(), int(os.environ["CK_PORT"])
        member = clusterkit_peers.member_of_job("tensorflow")
        self.rank = int(os.environ["CK_NODE_RANK"])
        self.idle = self.ended = self.success = False
        self.has_verdict = threading.Event()
        self.held = ExitStack()
        try:
            if self.rank == 0:
                Head(nodes, port, member)
            ports = [self.hold_free_port(port + 1) for _ in range(count)]
            self.line = clusterkit_peers.connect_within(
                TIMEOUT_S, (os.environ["CK_HEAD_ADDR"], port), member
            )
            self.line.send({"address": own_address(), "ports": ports})
            self.addresses = self.line.receive(TIMEOUT_S + 10).get("addresses")
        except OSError as error:
            sys.exit(f"clusterkit: not all nodes of the job came to {nodes[0]}: {error}")
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        """Note what the head says: that all is over, or nothing, as it or another node has gone."""
        with suppress(OSError):
            self.success = "over" in self.line.receive()
        self.has_verdict.set()

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
            send(self.line, {"idle": True})
        return self.verdict() if self.has_verdict.is_set() else None

    def verdict(self):
        """Wait for what the head says; return how this node is to end."""
        self.ended = True
        self.has_verdict.wait()
        if self.success:
            return 0
        print("clusterkit: another node of the job has failed", file=sys.stderr)
        return 1

    def leave(self, code):
        """Return the exit code of this node, whose processes have ended with `code`."""
        if code or self.ended:
            return code
        if self.rank:
            send(self.line, {"left": True})
            return 0
        # The head's own process has to last until all others know.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        send(self.line, {"idle": True})
        return self.verdict()


class Head:
    """What the first node does for all; the end of their lines says that something went wrong."""

    def __init__(self, nodes, port, member):
        self.nodes = nodes
        self.addresses = {}
        self.lines = {}
        self.busy = set(range(len(nodes)))
        self.lost = False
        self.changed = threading.Condition()
        # The nodes of a local job have loopback addresses of their own.
        address = os.environ.get("CK_NODE_ADDR", ""), port
        self.listener = clusterkit_peers.Listener(address, member, self.serve)
        threading.Thread(target=self.preside, daemon=True).start()

    def serve(self, line):
        """Know a node for as long as it is there."""
        addresses = self.addresses_of(line.rank, line.receive(clusterkit_peers.MESSAGE_S))
        with self.changed:
            if line.rank in self.addresses:
                return
            self.addresses[line.rank], self.lines[line.rank] = addresses, line
            self.changed.notify_all()
        left = False
        for message in line.messages():
            left = "left" in message
            with self.changed:
                self.busy.discard(line.rank)
                self.changed.notify_all()
            if left:
                break
        with self.changed:
            del self.lines[line.rank]
            self.lost = self.lost or not left
            self.changed.notify_all()

    def addresses_of(self, rank, message):
        """Return the addresses of a node's processes."""
        host, ports = clusterkit_peers.text(message, "address", 64), message.get("ports")
        if not isinstance(ports, list) or len(ports) > MOST_PORTS:
            raise clusterkit_peers.PeerError("sends no list of ports")
        if not all(type(port) is int and 0 < port < 65536 for port in ports):
            raise clusterkit_peers.PeerError("sends what is not a port")
        host = address_of(rank, self.nodes, host)
        return [f"{host}:{port}" for port in ports]

    def preside(self):
        """Tell all nodes where the others are, and when all is over."""
        with self.changed:
            came = self.changed.wait_for(lambda: self.lost or self.came(), TIMEOUT_S)
            if not came:
                missing = [name for rank, name in enumerate(self.nodes) if rank not in self.lines]
                why = f" ({self.listener.refused})" if self.listener.refused else ""
                print(f"clusterkit: no word from {' '.join(missing)}{why}", file=sys.stderr)
            self.lost = self.lost or not came
            self.listener.close()
        addresses = [address for rank in sorted(self.addresses) for address in self.addresses[rank]]
        self.tell({"addresses": addresses})
        with self.changed:
            self.changed.wait_for(lambda: self.lost or not self.busy)
        self.tell({"over": True})

    def came(self):
        """Tell whether all nodes are there."""
        return len(self.addresses) == len(self.nodes)

    def tell(self, message):
        """Tell all nodes something, this one last, which may end then; or that all is lost."""
        for _, line in sorted(self.lines.items(), reverse=True):
            if self.lost:
                line.end()
            else:
                send(line, message)


def own_address():
    """Return the address of this node on its way to the head."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((os.environ["CK_HEAD_ADDR"], 9))  # of UDP: nothing is sent
        return probe.getsockname()[0]
    return os.environ["CK_NODE_NAME"]


def address_of(rank, nodes, own):
    """Return how to reach a node: by its name where that leads to the address that it has."""
    if rank == 0:
        own = os.environ["CK_HEAD_ADDR"]
    try:
        here, there = (
            {info[4][0] for info in socket.getaddrinfo(host, None)} for host in (nodes[rank], own)
        )
    except OSError:
        return own
    return nodes[rank] if here & there else own


def send(line, message):
    """Send a message; nothing where the other side has gone, which whoever reads notices."""
    with suppress(OSError):
        line.send(message)
