"""Rule GPU by GPU: culprits with the same trouble are named together, "GPU 3" or "GPUs 3,5"."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import Evidence, Judgement, Ruling, missing, passed
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu
from clusterkit.transport.probe import Missing


def by_gpu(evidence: Evidence, rule: Callable[[Gpu], Ruling | None], fine: str) -> Judgement:
    """Apply `rule` to every GPU of every node; nodes where it finds nothing pass with `fine`.

    Its rulings leave out the name of the GPU, which is put before the summary. A node whose GPUs
    are all `skip` is skipped.
    """
    for node in evidence.nodes:
        facts = node.of(nvidia_gpus.PROBE)
        if isinstance(facts, Missing):
            yield node.name, missing(facts)
            continue
        ruled = [(gpu.index, rule(gpu)) for gpu in facts.gpus]
        culprits = [(i, r) for i, r in ruled if r is not None and r.verdict is not Verdict.SKIP]
        skipped = [r for _, r in ruled if r is not None and r.verdict is Verdict.SKIP]
        if culprits:
            for ruling in together(culprits):
                yield node.name, ruling
        elif len(skipped) == len(ruled) and skipped:
            yield node.name, skipped[0]
        else:
            yield node.name, passed(fine)


def together(culprits: Iterable[tuple[int, Ruling]]) -> Iterable[Ruling]:
    """Fold rulings about single GPUs, by index, that say the same; the first command stays."""
    groups: dict[tuple[Verdict, str], list[tuple[int, Ruling]]] = {}
    for index, ruling in culprits:
        groups.setdefault((ruling.verdict, ruling.summary), []).append((index, ruling))
    for (verdict, summary), members in groups.items():
        first = members[0][1]
        yield Ruling(
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
