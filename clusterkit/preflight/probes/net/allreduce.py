"""All-reduces of pairs of nodes, as programs/preflight/allreduce.py prints them.

ck-allreduce 1 NODE NODES BACKEND RANKS_PER_NODE
pair ROUND PEER ok BYTES SECONDS DEVICE      pair ROUND PEER hung
pair ROUND PEER failed REASON                end
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from clusterkit.core.data import read_template
from clusterkit.preflight.probes.snippets import bundled, port_of, read_program, snippet
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed

MOST_ROUNDS = 4
_MEET_S = {"gloo": 30.0, "nccl": 90.0}
"""How long the ranks of a round may take to meet: importing torch from a busy shared folder takes
most of it."""
_RUN_S = {"gloo": 20.0, "nccl": 45.0}
"""How long they may take to connect and to exchange data, once they have met."""
_MARGIN_S = 10.0

_COLLECTIVE = "clusterkit_collective"

_NAME = re.compile(r"[\w.:-]{1,255}", re.ASCII)
_BYTES = re.compile(r"[1-9][0-9]{0,17}")
_SECONDS = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """How the all-reduce with one peer went, as one of the two nodes saw it."""

    peer: str
    status: str
    """`ok`, `failed` or `hung`."""
    reason: str = ""
    bus_bytes_per_s: float | None = None
    """Bytes times 2 (n - 1) / n over seconds, n ranks in all (nccl-tests, doc/PERFORMANCE.md)."""
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceFacts:
    """The all-reduces that one node took part in."""

    ranks_per_node: int
    exercises: tuple[Exercise, ...]


def parse(text: str) -> AllReduceFacts:
    """Return what a node printed.

    Raises:
        Unparsed: it is not that, or it is cut off.
    """
    lines = text.splitlines()
    if len(lines) < 2 or lines[-1] != "end":
        raise Unparsed("its end is missing")
    match lines[0].split():
        case ["ck-allreduce", "1", node, _, "gloo" | "nccl", ranks] if _NAME.fullmatch(
            node
        ) and _BYTES.fullmatch(ranks):
            per_node = int(ranks)
        case _:
            raise Unparsed("its first line is damaged")
    exercises = tuple(_exercise(line, 2 * per_node) for line in lines[1:-1])
    return AllReduceFacts(ranks_per_node=per_node, exercises=exercises)


def _exercise(line: str, ranks: int) -> Exercise:
    match line.split(" "):
        case ["pair", _, peer, "hung"] if _NAME.fullmatch(peer):
            return Exercise(peer=peer, status="hung")
        case ["pair", _, peer, "failed", *words] if _NAME.fullmatch(peer) and words:
            return Exercise(peer=peer, status="failed", reason=" ".join(words)[:200])
        case ["pair", _, peer, "ok", size, seconds, device] if (
            _NAME.fullmatch(peer) and _BYTES.fullmatch(size) and _SECONDS.fullmatch(seconds)
        ):
            factor = 2 * (ranks - 1) / ranks
            return Exercise(
                peer=peer,
                status="ok",
                bus_bytes_per_s=int(size) * factor / max(float(seconds), 1e-9),
                device=device.replace("_", " "),
            )
        case _:
            raise Unparsed(f"unexpected line {line[:60]!r}")


def allreduce_snippet(job: PreflightJob, rounds: str = "") -> str | None:
    """Return the snippet for all nodes of `job`; the rounds default to one of neighbours."""
    count = len(job.hosts)
    if count < 2:
        return None
    backend = "nccl" if job.uses_gpus else "gloo"
    neighbours = ",".join(f"{k}-{k + 1}" for k in range(0, count - 1, 2))
    # The program that `clusterkit bench collectives` measures with, too.
    collective = read_template(f"programs/collectives/{_COLLECTIVE}.py")
    arguments = (
        bundled(read_program("allreduce_rank"), {_COLLECTIVE: collective}),
        ",".join(job.hosts),
        str(port_of(job)),
        backend,
        str((job.gpus_per_node or 1) if backend == "nccl" else 1),
        rounds or neighbours,
        f"{_MEET_S[backend]:g}",
        f"{_RUN_S[backend]:g}",
    )
    if (interface := job.network_interface) is not None:
        ours = {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
        job = dataclasses.replace(job, env={**ours, **job.env})
    return snippet(job, ("netnode",), "allreduce", arguments, env=True)


PROBE = Probe(
    name="net-allreduce",
    command=allreduce_snippet,
    parse=parse,
    timeout_s=_MEET_S["nccl"] + _RUN_S["nccl"] + _MARGIN_S,
)
AGAIN = Probe(
    name="net-allreduce-again",
    command=allreduce_snippet,
    parse=parse,
    timeout_s=MOST_ROUNDS * _MEET_S["nccl"] + _RUN_S["nccl"] + _MARGIN_S,
)
"""Suspects, each paired with a node whose first all-reduce went well."""
