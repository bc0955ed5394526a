"""Which host of the job this node is, and which nodes meet in which round.

Runs on nodes with nothing but Python >= 3.6: no clusterkit, no files. The programs beside this
one import it; clusterkit/preflight/probes/snippets.py hands both to `python -c`.
"""

import os
import socket
import sys


def resolve(host):
    """Return the IPv4 and IPv6 socket addresses of `host`, best first; empty: it has none."""
    try:
        found = socket.getaddrinfo(host, None, 0, socket.SOCK_STREAM)
    except OSError:
        return []
    return [(family, address[0]) for family, _, _, _, address in found]


def is_loopback(address):
    return address.startswith("127.") or address == "::1"


def is_mine(family, address):
    probe = socket.socket(family, socket.SOCK_STREAM)
    try:
        probe.bind((address, 0))
    except OSError:
        return False
    finally:
        probe.close()
    return True


def find_self(hosts):
    """Return the index of this node in `hosts`; exit where it is none of them.

    Slurm's word goes first, then the name that the node gives itself, then the addresses that
    can be bound here. A loopback address says nothing: every node has it.
    """
    own = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    if own in hosts:
        return hosts.index(own)
    short = [i for i, host in enumerate(hosts) if host.split(".")[0] == own.split(".")[0]]
    if len(short) == 1 and not hosts[short[0]][0].isdigit():
        return short[0]
    for i, host in enumerate(hosts):
        if any(is_mine(f, a) for f, a in resolve(host) if not is_loopback(a)):
            return i
    sys.exit(f"{own} is none of the job's hosts, by name or by address")


def circle(count, most):
    """Yield the rounds of a round-robin by the circle method, each a list of pairs (low, high).

    Every pair meets once in `count - 1` rounds (`count` where it is odd, with one at rest in
    each); the pairs of a round are disjoint. Of more than `most` rounds, as many evenly spread.
    """
    size = count + count % 2
    rounds = size - 1
    for number in range(min(rounds, most)):
        turn = number * rounds // min(rounds, most)
        ring = [0, *((place - turn) % rounds + 1 for place in range(rounds))]
        halves = [sorted((ring[k], ring[-1 - k])) for k in range(size // 2)]
        yield [(low, high) for low, high in halves if high < count]


def read_rounds(text, count, most):
    """Return rounds as written, `0-1,2-3;0-2`, or those of a round-robin where `text` is empty."""
    if not text:
        return list(circle(count, most))
    return [
        [tuple(int(i) for i in pair.split("-")) for pair in part.split(",") if pair]
        for part in text.split(";")
    ]


def peers_of(me, rounds):
    """Return the peer of each round; None where this node rests."""
    found = []
    for pairs in rounds:
        mine = [pair for pair in pairs if me in pair]
        found.append(sum(mine[0]) - me if mine else None)
    return found
