"""Measure TCP reach, latency and bandwidth between all nodes of a job, in disjoint pairs.

Runs on every node at about the same time, with nothing but Python >= 3.6 and its standard
library, and prints what clusterkit/preflight/probes/net/links.py reads. First every node dials
every other until it answers; whoever has settled all of its peers (or waited long enough) says GO
to all, and who hears GO passes it on. From then on time is cut into slots, one a round, so that a
peer that is dead or filtered costs its partner one slot and nobody else anything. What a pair
does in its slot stands in traffic.py.
"""

import errno
import fcntl
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path

from netnode import find_self, is_loopback, peers_of, read_rounds, resolve
from traffic import answer, call, now, wait_until

DIAL_S = 3.0
REPLY_S = 1.5
PORTS_TRIED = 4
GO_DELAY_S = 0.5
SIOCGIFADDR = 0x8915
ERRORS = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.EAGAIN: "timeout",
    errno.ECONNRESET: "closed",
}


def say(*words):
    sys.stdout.write(" ".join(str(word) for word in words) + "\n")
    sys.stdout.flush()


def why(error):
    if isinstance(error, socket.timeout):
        return "timeout"
    return ERRORS.get(error.errno, "unreachable")


def read_line(sock):
    line = b""
    while not line.endswith(b"\n") and len(line) < 300:
        byte = sock.recv(1)
        if not byte:
            break
        line += byte
    return line.decode("ascii", "replace").split()


def address_of(interface):
    """Return the IPv4 address of `interface`; "-" where it has none."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        request = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24])
    except OSError:
        return "-"
    finally:
        probe.close()


def nic_of(address):
    """Return name and speed in Mbit/s of the interface that has `address`; "-": not known."""
    for folder in sorted(Path("/sys/class/net").iterdir()):
        if address_of(folder.name) == address:
            try:
                speed = int((folder / "speed").read_text())
            except (OSError, ValueError):
                speed = 0
            # A virtual interface states a speed that nothing keeps.
            real = speed > 0 and (folder / "device").exists()
            return folder.name, speed if real else "-"
    return "-", "-"


def listen(host, port, alone):
    """Return a listening socket and its port: `port` or one of the next few."""
    for candidate in range(port, port + PORTS_TRIED):
        for family, address in [(socket.AF_INET, host)] if alone else WILDCARDS:
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                continue  # a kernel without IPv6
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                sock.bind((address, candidate))
                sock.listen(512)
            except OSError as error:
                sock.close()
                if error.errno == errno.EADDRINUSE:
                    break
            else:
                return sock, candidate
    sys.exit(f"ports {port} to {port + PORTS_TRIED - 1} are all in use or not allowed")


WILDCARDS = [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]


class Node:
    """This node among its peers; threads meet under `lock`."""

    def __init__(self, hosts, port, token, interface):
        self.hosts, self.port, self.token = hosts, port, token
        self.me = find_self(hosts)
        # Hosts that are all loopback addresses are one machine that plays many nodes.
        alone = all(is_loopback(host) for host in hosts)
        self.listener, self.bound = listen(hosts[self.me], port, alone)
        self.own_address = address_of(interface) if interface else "-"
        self.lock = threading.Condition()
        self.start = None
        self.received, self.reached, self.first_port = {}, {}, {}
        self.routes, self.links, self.calls = {}, [], {}

    def spawn(self, target, *args):
        """Run `target` in a thread that holds nothing up at the end."""
        threading.Thread(target=target, args=args, daemon=True).start()

    def accept(self):
        """Greet whoever calls."""
        while True:
            sock, _ = self.listener.accept()
            self.spawn(self.greet, sock)

    def greet(self, sock):
        """Answer a caller of this run, and keep the connection for whoever wants it."""
        try:
            sock.settimeout(5)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            words = read_line(sock)
            if len(words) != 4 or words[:2] != ["ck-net", self.token]:
                sock.close()
                return
            peer, kind = int(words[2]), words[3]
            sock.sendall(f"ck-net {self.token} {self.me} {self.own_address}\n".encode())
        except (OSError, ValueError):
            sock.close()
            return
        with self.lock:
            if kind == "reach":
                self.received.setdefault(peer, now())
            else:
                self.calls[kind, peer] = sock
            self.lock.notify_all()
        if kind == "reach":
            self.follow(sock)

    def follow(self, sock):
        """Pass GO on to a peer, in case it is known already, and wait for it from there."""
        with self.lock:
            self.links.append(sock)
            start = self.start
        try:
            if start is not None:
                sock.sendall(f"go {int((start - now()) * 1000)}\n".encode())
            sock.settimeout(None)
            words = read_line(sock)
            if len(words) == 2 and words[0] == "go":
                self.go(now() + int(words[1]) / 1000.0)
        except (OSError, ValueError):
            return

    def go(self, start):
        """Agree to `start`, unless another start was agreed on, and tell all peers."""
        with self.lock:
            if self.start is not None:
                return
            self.start = start
            links = list(self.links)
            self.lock.notify_all()
        for sock in links:
            try:
                sock.sendall(f"go {int((start - now()) * 1000)}\n".encode())
            except OSError:
                continue

    def dial(self, peer, kind, until):
        """Return (status, socket, seconds to connect); the socket is None where it failed."""
        first = None
        for address, port in self.ways_to(peer):
            status, sock, took = self.dial_port(address, port, peer, kind, until)
            if port == self.port:
                self.first_port[peer] = status
            if sock is not None:
                self.routes.setdefault(peer, (address, port))
                return "ok", sock, took
            first = first or status
            if status not in ("refused", "foreign"):
                break
        return first or "name", None, 0.0

    def ways_to(self, peer):
        """Return addresses and ports to try; one that was right before is the only one."""
        if peer in self.routes:
            return [self.routes[peer]]
        ports = range(self.port, self.port + PORTS_TRIED)
        return [(address, port) for address in resolve(self.hosts[peer])[:1] for port in ports]

    def dial_port(self, address, port, peer, kind, until):
        """Do what `dial` does for one port."""
        sock = socket.socket(address[0], socket.SOCK_STREAM)
        began = now()
        try:
            sock.settimeout(max(0.01, min(DIAL_S, until - began)))
            sock.connect((address[1], port))
        except OSError as error:
            sock.close()
            return why(error), None, 0.0
        took = now() - began
        try:
            sock.settimeout(REPLY_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(f"ck-net {self.token} {self.me} {kind}\n".encode())
            words = read_line(sock)
        except OSError:
            words = []
        if len(words) != 4 or words[:2] != ["ck-net", self.token]:
            sock.close()
            return "foreign", None, 0.0
        if words[2] != str(peer):
            sock.close()
            return "wrong:" + self.hosts[int(words[2])], None, 0.0
        if words[3] != "-" and self.own_address != "-":
            self.routes[peer] = ((socket.AF_INET, words[3]), port)
        return "ok", sock, took

    def reach(self, peer, window_end):
        """Dial until the peer answers, or it is up and does not, or nobody waits any longer."""
        began = now()
        while True:
            status, sock, took = self.dial(peer, "reach", now() + DIAL_S + PORTS_TRIED * REPLY_S)
            with self.lock:
                up_since = self.received.get(peer)
                started = self.start is not None
            given_up = up_since is not None and now() - up_since > DIAL_S
            out_of_time = now() > window_end or (started and now() - began > DIAL_S)
            if sock or status == "name" or "wrong" in status or given_up or out_of_time:
                break
            time.sleep(0.1)
        with self.lock:
            self.reached[peer] = (status, took, sock.getsockname()[0] if sock else None)
            self.lock.notify_all()
        if sock:
            self.follow(sock)

    def take(self, kind, peer, until):
        """Return the connection that `peer` opened for `kind`; None where none comes."""
        with self.lock:
            while (kind, peer) not in self.calls and now() < until:
                self.lock.wait(max(0.001, until - now()))
            return self.calls.pop((kind, peer), None)


def settle(node, peers, window_s):
    """Dial all peers and agree on a start."""
    window_end = now() + window_s
    node.spawn(node.accept)
    for peer in peers:
        node.spawn(node.reach, peer, window_end)
    with node.lock:
        while node.start is None and len(node.reached) < len(peers) and now() < window_end:
            node.lock.wait(max(0.001, window_end - now()))
    node.go(now() + GO_DELAY_S)


def tell_reach(node, peers):
    """Print how dialling went, first port of the head included; wait for stragglers."""
    with node.lock:
        end = now() + 2 * DIAL_S
        while len(node.reached) < len(peers) and now() < end:
            node.lock.wait(max(0.001, end - now()))
        reached = dict(node.reached)
    if 0 in peers:
        status, took, _ = reached.get(0, ("timeout", 0.0, None))
        first = node.first_port.get(0, status)
        say("head", first, round(took * 1e6) if first == "ok" else "-")
    for peer in sorted(reached):
        say("to", node.hosts[peer], reached[peer][0])
    own = [address for _, _, address in reached.values() if address]
    if own:
        say("nic", *nic_of(own[0].replace("::ffff:", "")))


def main(words):
    hosts, port, token, window_s, slot_s, most, rounds_text, interface = words
    hosts, port = hosts.split(","), int(port)
    slot, window_s = float(slot_s), float(window_s)
    rounds = read_rounds(rounds_text, len(hosts), int(most))
    signal.alarm(int(window_s + len(rounds) * slot + 4 * DIAL_S) + 2)
    node = Node(hosts, port, token, interface)
    schedule = peers_of(node.me, rounds)
    # All know the head, whose port is that of the rendezvous.
    peers = sorted({peer for peer in schedule if peer is not None} | ({0} - {node.me}))
    say("ck-net", 1, hosts[node.me], len(hosts), len(rounds), slot_s)
    say("port", port, node.bound)
    settle(node, peers, window_s)
    start = node.start or now()
    for number, peer in enumerate(schedule):
        begin = start + number * slot
        wait_until(begin)
        if peer is None:
            continue
        tag = f"r{number}."
        try:
            meet = call if node.me < peer else answer
            result = meet(node, peer, tag, begin, slot)
        except OSError as error:
            result = (why(error) if why(error) == "timeout" else "closed",)
        say("pair", number, hosts[peer], *result)
    wait_until(start + len(rounds) * slot)
    tell_reach(node, peers)
    say("end")


main(sys.argv[1:])
