"""What the link between two hosts carries, and a link whose frames are those of a wire.

A pair of virtual network cards hands over up to 64 KiB at once, from memory to memory, faster than
two processors can do anything with it. `framed` lets every packet pass by itself and in the size of
an Ethernet frame, as a network card without offloads sends it: still without any limit of the rate.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab import Lab

_CONTROL = "net.ipv4.tcp_congestion_control"
_USUAL_SEGMENTS = 65535
"""Of a virtual network card, GSO_MAX_SEGS of Linux."""


@contextmanager
def framed(lab: Lab) -> Iterator[None]:
    """Let the nodes send frames of the link's MTU while the block runs, under TCP Reno.

    Reno, because every Linux has it and grants it to a network namespace, and the machine's own
    choice may be one that paces (BBR), whose timers cost more than the frames.
    """
    before = {
        node: lab.run(node, ["sysctl", "-n", _CONTROL], check=True).stdout.strip()
        for node in lab.nodes
    }
    try:
        for node in lab.nodes:
            _set(lab, node, segments=1, control="reno")
        yield
    finally:
        for node, control in before.items():
            _set(lab, node, segments=_USUAL_SEGMENTS, control=control)


def iperf3(lab: Lab, *, seconds: int) -> float:
    """Return what TCP carries between the first two nodes, Gbit/s in each direction.

    Both directions are full at once, as ranks of an all-reduce send and receive at once; where the
    two are unlike, their mean is what such a pair of ranks would get. Needs iperf3.
    """
    server, client = lab.nodes[:2]
    lab.run(server, ["iperf3", "--server", "--one-off", "--daemon"], check=True)
    way = ["--client", lab.layout.address(server), "--bidir"]
    words = ["iperf3", *way, "--time", str(seconds), "--json"]
    end = json.loads(lab.run(client, words, check=True).stdout)["end"]
    ways = (end["sum_received"], end["sum_received_bidir_reverse"])
    return sum(float(way["bits_per_second"]) for way in ways) / len(ways) / 1e9


def _set(lab: Lab, node: str, *, segments: int, control: str) -> None:
    device = ["ip", "link", "set", "dev", "eth0", "gso_max_segs", str(segments)]
    lab.run(node, device, check=True)
    lab.run(node, ["sysctl", "-q", "-w", f"{_CONTROL}={control}"], check=True)
