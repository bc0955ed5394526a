"""Results GPU by GPU: those that say the same are folded, "GPU 3" or "GPUs 3,5"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import node_check
from clusterkit.preflight.checks.results import Result, ok
from clusterkit.preflight.checks.types import Check
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu, NvidiaGpus

GpuRule = Callable[[Gpu], Result | None]


def gpu_check(id_: str, name: str, fine: str) -> Callable[[GpuRule], Check]:
    """Return a decorator that makes a check of a rule about one NVIDIA GPU.

    Where the rule finds nothing, `fine` is the summary.

    Its results leave out the name of the GPU, which is put before the summary. A node whose GPUs
    are all `skip` is skipped.
    """

    def decorated(rule: GpuRule) -> Check:
        def of_node(facts: NvidiaGpus) -> Iterable[Result]:
            return by_gpu(((gpu.index, rule(gpu)) for gpu in facts.gpus), ok(fine))

        return node_check(id_, name, nvidia_gpus.PROBE)(of_node)

    return decorated


def by_gpu(results: Iterable[tuple[int, Result | None]], fine: Result) -> Iterator[Result]:
    """Yield the faults among the results of a node's GPUs, else that all are skipped or `fine`."""
    found = [*results]
    faults = [(i, r) for i, r in found if r is not None and r.verdict is not Verdict.SKIP]
    skipped = [r for _, r in found if r is not None and r.verdict is Verdict.SKIP]
    yield from together(faults)
    if not faults:
        yield skipped[0] if skipped and len(skipped) == len(found) else fine


def together(faults: Iterable[tuple[int, Result]]) -> Iterator[Result]:
    """Fold results about single GPUs, by index, that say the same; the first command stays."""
    groups: dict[tuple[Verdict, str], list[tuple[int, Result]]] = {}
    for index, result in faults:
        groups.setdefault((result.verdict, result.summary), []).append((index, result))
    for (verdict, summary), members in groups.items():
        first = members[0][1]
        yield Result(
            verdict=verdict,
            summary=f"{gpus(index for index, _ in members)}: {summary}",
            evidence="\n".join(dict.fromkeys(r.evidence for _, r in members if r.evidence)),
            hint=first.hint,
            command=first.command,
        )


def gpus(indices: Iterable[int]) -> str:
    """Return `GPU 3` or `GPUs 3,5`."""
    names = [str(index) for index in sorted(set(indices))]
    return f"GPU {names[0]}" if len(names) == 1 else f"GPUs {','.join(names)}"
