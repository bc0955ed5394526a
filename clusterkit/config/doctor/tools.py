"""The tools of this machine: GPU driver, Slurm, SSH, container runtimes."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.config.doctor.machine import Condition, Item, Patient
from clusterkit.config.init.discover import NVIDIA_SMI
from clusterkit.core.model import ClusterKind


def gpus(patient: Patient) -> Iterator[Item]:
    """Yield the GPUs of this machine."""
    answer = patient.run(NVIDIA_SMI)
    names = [line.strip() for line in answer.output.splitlines() if line.strip()]
    if answer.ok and names:
        kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        yield Item(name="nvidia-smi", condition=Condition.OK, summary=kinds)
    elif answer.found:
        yield Item(
            name="nvidia-smi",
            condition=Condition.WARN,
            summary=answer.complaint if not answer.ok else "lists no GPU",
            fix="nvidia-smi (its own words say what the driver lacks)",
        )
    else:
        yield Item(
            name="nvidia-smi",
            condition=Condition.MISSING,
            summary="no NVIDIA driver here; jobs on this machine use CPUs",
        )


def slurm(patient: Patient) -> Iterator[Item]:
    """Yield the tools, the controller and the accounting of Slurm."""
    needed = patient.has(ClusterKind.SLURM)
    tools = {name: patient.run((name, "--version")) for name in ("sbatch", "srun", "squeue")}
    missing = [name for name, answer in tools.items() if not answer.found]
    if missing:
        yield Item(
            name="slurm",
            condition=Condition.MISSING,
            summary=f"{', '.join(missing)} not on PATH",
            fix="run on a login node, or: module load slurm" if needed else None,
            needed=needed,
        )
        return
    answer = tools["sbatch"]
    if not answer.ok:  # then no tool of Slurm finds its configuration, and none has more to say
        yield Item(
            name="slurm",
            condition=Condition.FAIL if needed else Condition.WARN,
            summary=answer.complaint,
            fix="export SLURM_CONF=/path/to/slurm.conf",
            needed=needed,
        )
        return
    yield Item(name="slurm", condition=Condition.OK, summary=answer.output.strip(), needed=needed)
    ping = patient.run(("scontrol", "ping"))
    up = ping.ok and " UP" in ping.output
    yield Item(
        name="slurmctld",
        condition=Condition.OK if up else Condition.MISSING,
        summary=ping.output.strip().splitlines()[0] if up else ping.complaint,
        fix=None if up else "scontrol ping; check SLURM_CONF, munge, and the controller itself",
        needed=needed,
    )
    sacct = patient.run(("sacct", "--noheader", "--allocations", "--starttime=now"))
    if up or sacct.ok or sacct.complaint != ping.complaint:
        yield Item(
            name="sacct",
            condition=Condition.OK if sacct.ok else Condition.WARN,
            summary="answers" if sacct.ok else _without_sacct(sacct.found, sacct.complaint),
        )


def _without_sacct(found: bool, complaint: str) -> str:
    reason = complaint if found else "not on PATH"
    return f"{reason}; states come from squeue and from the jobs' own results"


def ssh(patient: Patient) -> Iterator[Item]:
    """Yield the SSH client and the keys of its agent."""
    needed = patient.has(ClusterKind.SSH)
    client = patient.run(("ssh", "-V"))
    yield Item(
        name="ssh",
        condition=Condition.OK if client.found else Condition.MISSING,
        summary=(client.errors or client.output).strip() if client.found else "no client",
        fix=None if client.found else "apt install openssh-client",
        needed=needed,
    )
    if not client.found:
        return
    agent = patient.run(("ssh-add", "-l"))
    keys = len(agent.output.splitlines()) if agent.ok else 0
    yield Item(
        name="ssh-agent",
        condition=Condition.OK if keys else Condition.WARN,
        summary=f"{keys} key{'s' if keys != 1 else ''}" if keys else "no agent with a key",
        fix=None if keys else 'eval "$(ssh-agent)" && ssh-add, or set identity_file:',
    )


def containers(patient: Patient) -> Iterator[Item]:
    """Yield each container runtime."""
    wanted = {spec.container_runtime for spec in patient.settings.clusters.values()}
    for name, argv, fix in (
        ("docker", ("docker", "version", "--format={{.Server.Version}}"), "docker info"),
        ("apptainer", ("apptainer", "--version"), "apptainer --version"),
        ("enroot", ("enroot", "version"), "enroot version"),
    ):
        answer = patient.run(argv)
        needed = name in wanted
        if answer.ok:
            summary = answer.output.strip()
            yield Item(name=name, condition=Condition.OK, summary=summary, needed=needed)
        elif answer.found:
            yield Item(name=name, condition=Condition.WARN, summary=answer.complaint, fix=fix)
        else:
            yield Item(
                name=name, condition=Condition.MISSING, summary="not on PATH", needed=needed,
                fix=f"install {name}, or change container_runtime:" if needed else None,
            )  # fmt: skip
