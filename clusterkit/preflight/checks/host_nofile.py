"""HOST009: whether the job's processes may open enough files."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.probes.host.limits import PROBE, Limits

_A_RANK = 4096
_LEAST = 1024

ABOUT = About(
    what="A process may open enough files and sockets.",
    why="NCCL and Gloo open sockets to many peers, data loaders a file descriptor for every tensor"
    " handed over: `Too many open files` comes hours into a job.",
    how="Max open files of /proc/self/limits, in a process started as the job's are.",
    fix="`* - nofile 1048576` in /etc/security/limits.d, LimitNOFILE for slurmd; or"
    " ulimit -n $(ulimit -Hn) in the job's setup.",
    source="4,096 for each rank of a node; NCCL documentation, troubleshooting",
)


def judge(evidence: Evidence) -> Judgement:
    """Warn of low limits, in jobs of several nodes of the figure for one rank at least."""
    ranks = evidence.job.gpus_per_node or 1
    wanted = _A_RANK * ranks if len(evidence.job.hosts) > 1 else _LEAST
    return each(evidence, PROBE, lambda limits: _rule(limits, wanted))


def _rule(limits: Limits, wanted: int) -> Ruling:
    if limits.open_files is None or limits.open_files >= wanted:
        return passed("enough files may be open")
    return Ruling(
        verdict=Verdict.FAIL if limits.open_files < _LEAST else Verdict.WARN,
        summary=f"only {limits.open_files} files may be open, {wanted} are advised",
        hint="raise nofile in limits.d, or put ulimit -n $(ulimit -Hn) into the job's setup",
        command="ulimit -Sn; ulimit -Hn",
    )


CHECK = Check(id="HOST009", name="host-nofile", about=ABOUT, probes=(PROBE,), judge=judge)
