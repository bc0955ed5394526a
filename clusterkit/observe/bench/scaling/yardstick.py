"""How long a fixed small computation takes on a node, beside whatever runs there.

The same program, awk, does the same additions on every node; a node with another awk is not
comparable, so which one it is comes along. Resolution: 10 ms, that of /proc/uptime.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterkit.preflight.probes.net.pairs import read_pairs, text_of
from clusterkit.transport.probe import Probe, Unparsed

ROUNDS = 2
_ADDITIONS = 2_000_000
"""A tenth to half a second of one processor; longer than a cgroup's usual period of 0.1 s."""

_SNIPPET = f"""
program=$(command -v awk)
file=$(readlink -f "$program")
echo "program=${{file:-$program}}"
i=0
while [ $i -lt {ROUNDS} ]
do
i=$((i + 1))
read -r began _ </proc/uptime
awk 'BEGIN {{ for (i = 0; i < {_ADDITIONS}; i++) s += i % 7; if (s < 0) exit 1 }}' || exit 1
read -r ended _ </proc/uptime
echo "round$i=$began $ended"
done
echo end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """How long the computation took."""

    program: str
    """The file of the awk that did it."""
    seconds: tuple[float, ...]
    """Wall-clock time of each round."""


def parse(text: str) -> Yardstick:
    """Read the pairs of the snippet."""
    pairs = read_pairs(text)
    seconds = []
    for number in range(1, ROUNDS + 1):
        try:
            began, ended = map(float, text_of(pairs, f"round{number}").split())
        except ValueError:
            raise Unparsed(f"round {number} has no two times") from None
        if ended < began:
            raise Unparsed(f"round {number} ended before it began")
        seconds.append(round(ended - began, 3))
    return Yardstick(program=text_of(pairs, "program"), seconds=tuple(seconds))


PROBE = Probe(name="yardstick", command=_SNIPPET, parse=parse, timeout_s=60.0)
