"""GPU020: processes of others on the GPUs."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.probes.gpu import nvidia_processes
from clusterkit.preflight.probes.gpu.nvidia_processes import GpuProcess


def _judge(evidence: Evidence) -> Judgement:
    return each(evidence, nvidia_processes.PROBE, _rule)


def _rule(processes: tuple[GpuProcess, ...]) -> Ruling:
    if not processes:
        return passed("no process computes on the GPUs")
    owners = ", ".join(sorted({process.user or "a container" for process in processes}))
    pids = ",".join(str(process.pid) for process in processes)
    count = "1 process" if len(processes) == 1 else f"{len(processes)} processes"
    return Ruling(
        verdict=Verdict.WARN,
        summary=f"{count} on the GPUs, of {owners}",
        evidence="\n".join(
            f"{p.pid} {p.user or '-'} {p.memory or '-'} {p.name}" for p in processes
        ),
        hint="left over from a job, or someone's at work: ask, or choose other nodes",
        command=f"ps -o pid,user,etime,args -p {pids}",
    )


CHECK = Check(
    id="GPU020",
    name="gpu-processes",
    about=About(
        what="Nothing computes on the GPUs before the job starts.",
        why="It takes memory and time from the job, which then runs out of the one or lags.",
        how="`nvidia-smi --query-compute-apps`, and the owner from /proc. Nothing is ever killed.",
        fix="End what is left over, or choose nodes that are free.",
        source="As in Meta's GCM and Character.AI's slonk; theirs may kill, ours never does.",
    ),
    probes=(nvidia_processes.PROBE,),
    judge=_judge,
)
