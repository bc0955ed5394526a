"""Why a run is slower than more of the same should be: what to look at, and what speaks for it.

Nodes are compared with each other, and a run with the smallest one; no figure of a machine is
known beforehand. What nothing speaks for is not named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.core.shell import quote
from clusterkit.observe.bench.scaling.evidence import NodeEvidence, mean, median
from clusterkit.observe.bench.scaling.result import (
    Cause,
    Row,
    Scaling,
    in_percent,
    in_words,
    step_time,
)
from clusterkit.observe.vitals.sample import IO_WAIT_PERCENT, STEAL_PERCENT, THROTTLED_PERCENT

_SLOWER = 1.5
"""A node whose microbenchmark takes so many times that of the others is a straggler."""
_SLOWER_IF_FULL = 4.0
"""Likewise where CPUs are full: then it is also luck how soon the microbenchmark has its turn."""
_CLOCK = 0.9
"""Likewise one whose GPUs have less than this share of the others' clock."""
_IDLE_GPU_PERCENT = 70.0
_BUSY_CPU_PERCENT = 80.0
_FULL_CPU_PERCENT = 90.0
_FULL_NETWORK = 0.7
"""Of what a network gives over long: a step that computes for the rest of its time hides that."""
_LESS_POWER = 0.85
"""GPUs that wait in a collective count as busy, and draw less: NCCL's kernels spin."""
_SOME_BYTES_PER_S = 1e6
"""Less than this between nodes is no gradients: whatever is waited for, it is not the network."""


def causes_of(scaling: Scaling, row: Row) -> tuple[Cause, ...]:
    """Return what speaks for a reason why this run falls short; stragglers of any run."""
    base = scaling.base
    found = [*_stragglers(row.evidence)]
    if base is not None and scaling.beyond(row):
        found.append(_held_up(scaling, base))
    if base is None or not scaling.short(row):
        return tuple(found)
    found += [
        *_held_gpus(row.evidence),
        *_limited(row.evidence, {node for cause in found for node in cause.nodes}),
        *_data_loading(row.evidence),
        *_processors(scaling, row.evidence),
    ]
    found += _communication(scaling, row, base, alone=not found)
    return tuple(found) or (_unknown(scaling, row),)


def _stragglers(evidence: Sequence[NodeEvidence]) -> Iterator[Cause]:
    for one in evidence:
        others = [other for other in evidence if other is not one]
        lines = tuple(_behind(one, others))
        if lines:
            yield Cause(
                kind="straggler",
                nodes=(one.node,),
                summary=f"{one.node} is slower than the others, which wait for it at every step",
                evidence=lines,
                hint=f"--exclude {quote(one.node)} shows what it costs; look there for other "
                "processes, CPU limits and clocks: clusterkit preflight",
            )


def _behind(one: NodeEvidence, others: Sequence[NodeEvidence]) -> Iterator[str]:
    """Yield what one node is behind the others in."""
    names = fold_set(tuple(other.node for other in others))
    theirs = median(
        other.yardstick_s for other in others if other.yardstick_program == one.yardstick_program
    )
    slower = _SLOWER_IF_FULL if (one.cpu_percent or 0.0) >= _FULL_CPU_PERCENT else _SLOWER
    if one.yardstick_s and theirs and one.yardstick_s >= slower * theirs:
        yield (
            f"a fixed small computation takes {one.yardstick_s:.2f} s there, "
            f"{theirs:.2f} s on {names}"
        )
    throttled = one.throttled_percent or 0.0
    highest = max((other.throttled_percent or 0.0 for other in others), default=throttled)
    if throttled >= THROTTLED_PERCENT and throttled >= 2 * highest:
        yield f"{_throttling(one)}, on {names} {highest:.0f} %"
    stolen = one.stolen_percent or 0.0
    most = max((other.stolen_percent or 0.0 for other in others), default=stolen)
    if stolen >= STEAL_PERCENT and stolen >= 2 * most:
        yield f"CPU steal {stolen:.0f} % there, {most:.0f} % on {names}"
    clock, usual = _clock(one), median(map(_clock, others))
    if clock and usual and clock < _CLOCK * usual:
        yield f"its slowest GPU runs at {clock:.0f} MHz, those of {names} at {usual:.0f} MHz"
    yield from _more_load(one, others, names)


def _more_load(one: NodeEvidence, others: Sequence[NodeEvidence], names: str) -> Iterator[str]:
    """Yield that other processes run there; on CPUs that are not all wanted, they may."""
    if one.load is None or not one.cpus or one.load <= one.cpus:
        return
    usual = median(other.load for other in others)
    if usual is not None and one.load >= _SLOWER * max(usual, 1.0):
        yield f"{one.load:.0f} processes want its {one.cpus} CPUs, on {names} {usual:.0f}"


def _held_gpus(evidence: Sequence[NodeEvidence]) -> Iterator[Cause]:
    lines = tuple(
        f"{one.node} GPU {gpu.index}: {', '.join(gpu.slowdowns)}"
        + (f", {gpu.temperature_c:.0f} C" if gpu.temperature_c is not None else "")
        for one in evidence
        for gpu in one.gpus
        if gpu.slowdowns
    )
    if lines:
        nodes = tuple(one.node for one in evidence if any(gpu.slowdowns for gpu in one.gpus))
        yield Cause(
            kind="throttle",
            nodes=nodes,
            summary=f"GPUs of {fold_set(nodes)} are held down by heat or power",
            evidence=lines,
            hint="look at cooling and power there: "
            f"clusterkit preflight --hosts {quote(fold_set(nodes))}",
        )


def _limited(evidence: Sequence[NodeEvidence], named: set[str]) -> Iterator[Cause]:
    """Yield nodes whose CPU limit holds the job up, but for those that are named already."""
    limited = [
        one
        for one in evidence
        if (one.throttled_percent or 0.0) >= THROTTLED_PERCENT and one.node not in named
    ]
    if limited:
        nodes = tuple(one.node for one in limited)
        yield Cause(
            kind="throttle",
            nodes=nodes,
            summary=f"a CPU limit stops the job's processes on {fold_set(nodes)} again and again",
            evidence=tuple(f"{one.node}: {_throttling(one)}" for one in limited),
            hint="ask for more CPUs (cpus_per_node), or start fewer workers and threads",
        )


def _data_loading(evidence: Sequence[NodeEvidence]) -> Iterator[Cause]:
    busy = mean(gpu.busy_percent for one in evidence for gpu in one.gpus)
    if busy is None or busy >= _IDLE_GPU_PERCENT:
        return
    cpu = mean(one.cpu_percent for one in evidence) or 0.0
    waiting = mean(one.waiting_percent for one in evidence) or 0.0
    if cpu >= _BUSY_CPU_PERCENT:
        yield Cause(
            kind="data-loading",
            summary="GPUs wait while CPUs work: most likely for data",
            evidence=(f"GPUs are busy {busy:.0f} % of the time, CPUs {cpu:.0f} %",),
            hint="more CPUs (cpus_per_node), less to decode, or data that is prepared beforehand",
        )
    elif waiting >= IO_WAIT_PERCENT:
        yield Cause(
            kind="data-loading",
            summary="GPUs wait while disks are read: most likely for data",
            evidence=(f"GPUs are busy {busy:.0f} % of the time, I/O wait is {waiting:.0f} %",),
            hint="put the data on a faster or nearer disk, in fewer and larger files",
        )


def _processors(scaling: Scaling, evidence: Sequence[NodeEvidence]) -> Iterator[Cause]:
    if any(one.gpus for one in evidence):
        return
    full = [one for one in evidence if (one.cpu_percent or 0.0) >= _FULL_CPU_PERCENT]
    if not full:
        return
    nodes = tuple(one.node for one in full)
    shared = scaling.shares_machine
    yield Cause(
        kind="processors",
        nodes=() if shared else nodes,
        summary="no GPU works, and the CPUs are full",
        evidence=tuple(
            ("" if shared else f"{one.node}: ") + f"{one.cpus} CPUs, {one.cpu_percent:.0f} % busy"
            for one in full
        ),
        hint="the nodes of a local cluster share this machine: more of them add no CPUs"
        if shared
        else "more slots need more CPUs; OMP_NUM_THREADS says how many threads each takes",
    )


def _communication(scaling: Scaling, row: Row, base: Row, *, alone: bool) -> Iterator[Cause]:
    """Yield that slots wait for each other, where that shows or nothing else does."""
    if scaling.shares_machine and not alone:
        return
    lines = []
    smallest = in_words(scaling.by, base.size.count)
    power, before = _power(row), _power(base)
    waits = power is not None and before is not None and power < _LESS_POWER * before
    if waits:
        lines.append(f"GPUs draw {power:.0f} W, and {before:.0f} W at {smallest}")
    idle = _idle_everywhere(row)
    if idle:
        lines.append(idle)
    full = (_network_share(scaling, row) or 0.0) >= _FULL_NETWORK
    if not (waits or full or (idle and _sends(row))):
        return
    if row.size.nodes == base.size.nodes and not waits:
        return
    if row.step_s and base.step_s and row.step_s > base.step_s:
        lines.append(
            f"a step takes {step_time(row.step_s)}, and {step_time(base.step_s)} at {smallest}"
        )
    lines += _traffic(scaling, row)
    yield Cause(
        kind="communication",
        summary="the network between the nodes is full"
        if full
        else "slots wait for each other: most likely for gradients on their way",
        evidence=tuple(lines),
        hint="clusterkit bench collectives tells what the links do; larger batches, or gradients "
        "accumulated over more of them, send less",
    )


def _idle_everywhere(row: Row) -> str:
    """Return that neither GPUs nor CPUs work; empty where they do, or none can tell."""
    busy = mean(gpu.busy_percent for one in row.evidence for gpu in one.gpus)
    cpu = mean(one.cpu_percent for one in row.evidence)
    if cpu is None or cpu >= _BUSY_CPU_PERCENT:
        return ""
    if busy is not None:
        text = f"GPUs are busy {busy:.0f} % of the time, CPUs {cpu:.0f} %"
        return text if busy < _IDLE_GPU_PERCENT else ""
    return f"no GPU works, and CPUs are busy {cpu:.0f} % of the time"


def _traffic(scaling: Scaling, row: Row) -> Iterator[str]:
    moved = mean(one.bytes_per_s for one in row.evidence)
    if moved is None or row.size.nodes == 1:
        return
    each = f", {moved * row.step_s / 1e6:.3g} MB per step" if row.step_s else ""
    yield f"a node sends or receives {moved / 1e6:.3g} MB/s{each}"
    share = _network_share(scaling, row)
    if share is not None:
        given = (scaling.node_bytes_per_s or 0.0) / 1e9
        yield (
            f"that is {in_percent(share)} of the {given:.3g} GB/s "
            f"that {scaling.interconnect} gives a node"
        )


def _sends(row: Row) -> bool:
    """Return whether nodes send each other anything to speak of, or nobody knows."""
    moved = mean(one.bytes_per_s for one in row.evidence)
    return moved is None or moved >= _SOME_BYTES_PER_S


def _network_share(scaling: Scaling, row: Row) -> float | None:
    """Return how much of the network a node uses; None where one of the two is not known."""
    moved = mean(one.bytes_per_s for one in row.evidence)
    if moved is None or not scaling.node_bytes_per_s or row.size.nodes == 1:
        return None
    return moved / scaling.node_bytes_per_s


def _held_up(scaling: Scaling, base: Row) -> Cause:
    smallest = in_words(scaling.by, base.size.count)
    return Cause(
        kind="base",
        summary=f"no script gains so much: {smallest}, which all is told against, was too slow",
        hint="measure again with nothing else on the nodes; the first steps may have compiled or "
        "loaded (a larger --warmup), or the work of a slot differs from size to size "
        "(--global-batch)",
    )


def _unknown(scaling: Scaling, row: Row) -> Cause:
    has_cpu = any(one.cpu_percent is not None for one in row.evidence)
    problem = next((one.problem for one in row.evidence if one.problem), "")
    return Cause(
        kind="unknown",
        summary="nothing that was measured says why",
        evidence=tuple(_traffic(scaling, row))
        or ((f"the nodes told nothing: {problem}",) if not has_cpu and problem else ()),
        hint="a profile of some steps does (torch.profiler, see `--profile` of "
        "examples/train_ddp.py); is the batch of a slot the same at each size?",
    )


def _throttling(one: NodeEvidence) -> str:
    at = f" of {one.throttled_at_cpus:g} CPUs" if one.throttled_at_cpus else ""
    return f"its CPU limit{at} is used up in {one.throttled_percent or 0.0:.0f} % of periods"


def _clock(one: NodeEvidence) -> float | None:
    return min((gpu.clock_mhz for gpu in one.gpus if gpu.clock_mhz is not None), default=None)


def _power(row: Row) -> float | None:
    return mean(gpu.power_w for one in row.evidence for gpu in one.gpus)
