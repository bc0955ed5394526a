"""FS004: whether the job's folders are mounted with sound options, the same on all nodes."""

from __future__ import annotations

from collections.abc import Sequence

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    Tier,
    missing,
    passed,
)
from clusterkit.preflight.checks.by_folder import usual
from clusterkit.preflight.probes.host.job_python import PROBE as PYTHON
from clusterkit.preflight.probes.host.shared_folders import PROBE, Folder
from clusterkit.transport.probe import Missing

_RISKY = {
    "soft": "a slow server then ends in write errors and lost data",
    "nolock": "locks then hold on one node only, and two writers damage a file",
    "noac": "every look at a file then asks the server, which is slow",
    "sync": "every write then waits for the server, which is slow",
}

ABOUT = About(
    what="The job's folders are mounted from one source with sound options, and the Python"
    " environment from a mount that lets libraries load.",
    why="A soft NFS mount loses data when the server is slow, nolock makes locks of rendezvous and"
    " cache files worthless, and under noexec torch's libraries do not load.",
    how="The line of the folder in /proc/self/mounts, its source by majority vote; statvfs of the"
    " interpreter's prefix for noexec.",
    fix="Mount with hard, and without nolock, noac and noexec; the same line on all nodes.",
    source="nfs(5), on soft, nolock and noac; mount(8), on noexec",
)


def judge(evidence: Evidence) -> Judgement:
    """Warn of risky options and odd sources; fail where the environment cannot be loaded."""
    paths = evidence.job.paths
    sources = usual(evidence, _source)
    for node in evidence.nodes:
        python = node.of(PYTHON)
        if python is not None and not isinstance(python, Missing) and python.noexec:
            yield node.name, _bad(Verdict.FAIL, "the Python environment is mounted noexec", "")
        elif paths:
            facts = node.of(PROBE)
            found = missing(facts) if isinstance(facts, Missing) else _rule(facts, paths, sources)
            yield node.name, found
    if not paths:
        yield None, Ruling(verdict=Verdict.SKIP, summary="no folder of the job is known")


def _rule(
    folders: tuple[Folder, ...], paths: tuple[str, ...], sources: Sequence[str | None]
) -> Ruling:
    if all(folder.volume is None for folder in folders):
        return Ruling(verdict=Verdict.UNKNOWN, summary="the mounts could not be looked at")
    for folder, path, most in zip(folders, paths, sources, strict=False):
        for option in sorted(folder.options & _RISKY.keys()):
            if folder.kind.startswith("nfs"):
                return _bad(Verdict.WARN, f"{path} is mounted {option}: {_RISKY[option]}", "")
        source = _source(folder)
        if most is not None and source not in {None, most}:
            evidence = f"{source}; most nodes: {most}"
            return _bad(Verdict.WARN, f"{path} comes from another source", evidence)
    return passed("the job's folders are mounted soundly")


def _source(folder: Folder) -> str | None:
    return folder.volume.source if folder.volume else None


def _bad(verdict: Verdict, summary: str, evidence: str) -> Ruling:
    hint = "mount it as on the other nodes, with hard and without nolock, noac or noexec"
    return Ruling(
        verdict=verdict, summary=summary, evidence=evidence, hint=hint, command="findmnt -l"
    )


CHECK = Check(
    id="FS004",
    name="fs-mounts",
    about=ABOUT,
    probes=(PROBE, PYTHON),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
