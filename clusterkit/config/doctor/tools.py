"""The tools of this machine: GPU driver, Slurm, SSH, container runtimes."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.config.doctor.machine import Condition, Item, Machine, bad, good
from clusterkit.config.init.discover import NVIDIA_SMI
from clusterkit.core.model import ClusterKind


def gpus(machine: Machine) -> Iterator[Item]:
    """Yield the GPUs of this machine."""
    answer = machine.run(NVIDIA_SMI)
    names = [line.strip() for line in answer.output.splitlines() if line.strip()]
    if answer.ok and names:
        kinds = (f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        yield good("nvidia-smi", ", ".join(kinds))
    elif answer.found:
        summary = answer.complaint if not answer.ok else "lists no GPU"
        fix = "nvidia-smi (its own words say what the driver lacks)"
        yield bad("nvidia-smi", Condition.WARN, summary, fix)
    else:
        summary = "no NVIDIA driver here; jobs on this machine use CPUs"
        yield bad("nvidia-smi", Condition.MISSING, summary)


def slurm(machine: Machine) -> Iterator[Item]:
    """Yield the tools, the controller and the accounting of Slurm."""
    needed = machine.has(ClusterKind.SLURM)
    tools = {name: machine.run((name, "--version")) for name in ("sbatch", "srun", "squeue")}
    missing = [name for name, answer in tools.items() if not answer.found]
    if missing:
        summary = f"{', '.join(missing)} not on PATH"
        fix = "run on a login node, or: module load slurm" if needed else None
        yield bad("slurm", Condition.MISSING, summary, fix, needed=needed)
        return
    answer = tools["sbatch"]
    if not answer.ok:  # then no tool of Slurm finds its configuration, and none has more to say
        condition = Condition.FAIL if needed else Condition.WARN
        fix = "export SLURM_CONF=/path/to/slurm.conf"
        yield bad("slurm", condition, answer.complaint, fix, needed=needed)
        return
    yield good("slurm", answer.output.strip(), needed=needed)
    ping = machine.run(("scontrol", "ping"))
    up = ping.ok and " UP" in ping.output
    if up:
        yield good("slurmctld", ping.output.strip().splitlines()[0], needed=needed)
    else:
        fix = "scontrol ping; check SLURM_CONF, munge, and the controller itself"
        yield bad("slurmctld", Condition.MISSING, ping.complaint, fix, needed=needed)
    sacct = machine.run(("sacct", "--noheader", "--allocations", "--starttime=now"))
    if sacct.ok:
        yield good("sacct", "answers")
    elif up or sacct.complaint != ping.complaint:
        reason = sacct.complaint if sacct.found else "not on PATH"
        summary = f"{reason}; states come from squeue and from the jobs' own results"
        yield bad("sacct", Condition.WARN, summary)


def ssh(machine: Machine) -> Iterator[Item]:
    """Yield the SSH client and the keys of its agent."""
    needed = machine.has(ClusterKind.SSH)
    client = machine.run(("ssh", "-V"))
    if not client.found:
        fix = "apt install openssh-client"
        yield bad("ssh", Condition.MISSING, "no client", fix, needed=needed)
        return
    yield good("ssh", (client.errors or client.output).strip(), needed=needed)
    agent = machine.run(("ssh-add", "-l"))
    keys = len(agent.output.splitlines()) if agent.ok else 0
    if keys:
        yield good("ssh-agent", f"{keys} key{'s' if keys != 1 else ''}")
    else:
        fix = 'eval "$(ssh-agent)" && ssh-add, or set identity_file:'
        yield bad("ssh-agent", Condition.WARN, "no agent with a key", fix)


def containers(machine: Machine) -> Iterator[Item]:
    """Yield each container runtime."""
    wanted = {spec.container_runtime for spec in machine.settings.clusters.values()}
    for name, argv, fix in (
        ("docker", ("docker", "version", "--format={{.Server.Version}}"), "docker info"),
        ("apptainer", ("apptainer", "--version"), "apptainer --version"),
        ("enroot", ("enroot", "version"), "enroot version"),
    ):
        answer = machine.run(argv)
        needed = name in wanted
        if answer.ok:
            yield good(name, answer.output.strip(), needed=needed)
        elif answer.found:
            yield bad(name, Condition.WARN, answer.complaint, fix)
        else:
            install = f"install {name}, or change container_runtime:" if needed else None
            yield bad(name, Condition.MISSING, "not on PATH", install, needed=needed)
