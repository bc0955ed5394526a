"""HOST008: whether the job's processes may lock the memory that RDMA needs."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    NodeFacts,
    Ruling,
    passed,
)
from clusterkit.preflight.checks.base import missing as missing_ruling
from clusterkit.preflight.probes.host.limits import PROBE
from clusterkit.preflight.probes.host.system import PROBE as SYSTEM
from clusterkit.transport.probe import Missing

_FAIL_BYTES = 64 << 20
_WARN_BYTES = 16 << 30

ABOUT = About(
    what="The limit on locked memory is high where the node has RDMA devices.",
    why="InfiniBand and RoCE pin every buffer. Under the usual limit of 8 MiB NCCL ends with"
    " `Call to ibv_create_qp failed` or `Cannot allocate memory`, or falls back to sockets.",
    how="Max locked memory of /proc/self/limits, in a process started as the job's are: over ssh,"
    " by srun, or here; a login shell's limit may be another one.",
    fix="`* - memlock unlimited` in /etc/security/limits.d, LimitMEMLOCK=infinity for slurmd and"
    " sshd, PropagateResourceLimitsExcept=MEMLOCK in slurm.conf, --ulimit memlock=-1 for Docker.",
    source="NCCL documentation, troubleshooting (unlimited); warn under 16 GiB as"
    " awsome-distributed-training does, fail under 64 MiB",
)


def judge(evidence: Evidence) -> Judgement:
    """Judge nodes that have RDMA devices."""
    for node in evidence.nodes:
        yield node.name, _rule(node)


def _rule(node: NodeFacts) -> Ruling:
    system, limits = node.of(SYSTEM), node.of(PROBE)
    if isinstance(system, Missing):
        return missing_ruling(system)
    if not system.rdma_devices:
        return Ruling(verdict=Verdict.SKIP, summary="no RDMA device needs locked memory")
    if isinstance(limits, Missing):
        return missing_ruling(limits)
    locked = limits.locked_bytes
    if locked is None or locked >= _WARN_BYTES:
        return passed("enough memory may be locked")
    return Ruling(
        verdict=Verdict.FAIL if locked < _FAIL_BYTES else Verdict.WARN,
        summary=f"only {locked >> 20} MiB may be locked, RDMA needs more",
        evidence=f"{locked} bytes; {', '.join(system.rdma_devices)}",
        hint="set memlock to unlimited for sshd, slurmd and in /etc/security/limits.d",
        command="ulimit -l; grep -rn memlock /etc/security; systemctl show slurmd | grep MEMLOCK",
    )


CHECK = Check(id="HOST008", name="host-memlock", about=ABOUT, probes=(SYSTEM, PROBE), judge=judge)
