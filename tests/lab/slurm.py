"""Slurm for the practice cluster: its configuration and its daemons.

Traps that shaped this file (Slurm 22.05):

- slurmctld refuses to start on a host not called as in ``SlurmctldHost``.
- Gres files must be device nodes, but are only looked at, never opened: nodes in the lab
  folder (``mknod``) serve on any machine.
- The cgroup plugin cannot be turned off. v1 with a mount point that does not exist does
  nothing, on machines with v1, v2 or both.
- Without ``DefMemPerCPU`` a job takes all memory of its nodes, and no two share one.
- ``slurmd -b`` tells that a cloud node has booted; without, slurmctld waits for ResumeTimeout.
"""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import accounting
from tests.lab.layout import HEAD, Layout, write_changed

if TYPE_CHECKING:
    from collections.abc import Iterable

GPUS_PER_NODE = 4
POWERED = Path(__file__).with_name("powered.sh")

SLURM_CONF = """\
ClusterName=lab
SlurmctldHost={head}({head_address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/{auth}
# A job that starts again waits as long as its old credentials are valid (two minutes by default).
AuthInfo=cred_expire=5
CredType={credentials}
StateSaveLocation={root}/hosts/{head}/state
SlurmctldPidFile={root}/hosts/{head}/slurmctld.pid
SlurmctldLogFile={root}/hosts/{head}/slurmctld.log
SlurmdPidFile={root}/hosts/%n/slurmd.pid
SlurmdLogFile={root}/hosts/%n/slurmd.log
SlurmdSpoolDir={root}/hosts/%n/spool
MailProg=/bin/true

ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
{topology}\
SlurmdParameters=config_overrides
{accounting}\
JobAcctGatherType=jobacct_gather/none

SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
KillWait=10
OverTimeLimit=0
CompleteWait=0
DefMemPerCPU=1000
# A dead node is noticed within this time; lower values take a busy machine for a dead one.
SlurmdTimeout=20
SlurmctldTimeout=20

NodeName={nodes} NodeAddr={node_addresses} CPUs=8 Boards=1 SocketsPerBoard=1 \
CoresPerSocket=8 ThreadsPerCore=1 RealMemory=20000 Gres=gpu:{gpus}
PartitionName=gpu Nodes={nodes} Default=YES MaxTime=60 DefaultTime=10 PriorityTier=5 PreemptMode=OFF
PartitionName=debug Nodes=n1 MaxTime=5 DefaultTime=5 PriorityTier=5 PreemptMode=OFF
PartitionName=low Nodes={nodes} MaxTime=60 DefaultTime=10 PriorityTier=1 PreemptMode=REQUEUE \
GraceTime=3
PartitionName=high Nodes={nodes} MaxTime=60 DefaultTime=10 PriorityTier=10 PreemptMode=OFF
"""


CLOUD_CONF = """\
NodeName={cloud} NodeAddr={addresses} CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 \
ThreadsPerCore=1 RealMemory=20000 Gres=gpu:{gpus} State=CLOUD
PartitionName=cloud Nodes={cloud} MaxTime=60 DefaultTime=10 PreemptMode=OFF
PartitionName=mixed Nodes=ALL MaxTime=60 DefaultTime=10 PreemptMode=OFF
ResumeProgram={power}/resume
SuspendProgram={power}/suspend
ResumeTimeout=60
SuspendTimeout=2
SuspendTime=3600
ResumeRate=0
SuspendRate=0
SlurmctldParameters=cloud_dns,idle_on_node_suspend
PrivateData=cloud
"""

POWER = """\
#!/bin/sh
# {word} of cloud nodes: noted, and told to powered.sh of each. One that has a file with a reason is
# not to be had, and where that is empty does not boot.
echo "{word} $1" >>{power}/log
for node in $(scontrol show hostnames "$1"); do
    reason={power}/$node.lacks
    if [ {word} = resume ] && [ -s "$reason" ]; then
        scontrol update "nodename=$node" state=down "reason=$(cat "$reason")"
    elif [ {word} != resume ] || [ ! -e "$reason" ]; then
        flock {power}/$node.lock sh -c "echo {word} >>{power}/$node"
    fi
done
"""


def _write_cloud(layout: Layout) -> str:
    """Write what powers nodes up and down; return its lines of slurm.conf."""
    if not layout.cloud:
        return ""
    layout.power.mkdir(exist_ok=True)
    for word in ("resume", "suspend"):
        write_changed(layout.power / word, POWER.format(word=word, power=layout.power))
        (layout.power / word).chmod(0o755)
    first = layout.nodes - layout.cloud + 1
    return CLOUD_CONF.format(
        cloud=f"n[{first}-{layout.nodes}]",
        addresses=f"10.77.0.[{first}-{layout.nodes}]",
        gpus=GPUS_PER_NODE,
        power=layout.power,
    )


def newer() -> bool:
    """Tell whether this is the newer of the two Slurm that the tests run on, 24.11.

    That one authenticates by its own plug-in (``auth/slurm``, 23.11), and knows of blocks of nodes
    (``topology/block``, 23.11); 22.05 has munge and no topology.
    """
    said = subprocess.run(["slurmctld", "-V"], check=True, capture_output=True, text=True)
    return tuple(map(int, said.stdout.split()[-1].split(".")[:2])) >= (24, 11)


def write_slurm(layout: Layout) -> None:
    """Write the configuration, the munge key and the pretend GPUs; keep what is there."""
    folder = layout.slurm_conf.parent
    folder.mkdir(parents=True, exist_ok=True)
    nodes, is_newer = f"n[1-{layout.nodes}]", newer()
    auth = "slurm" if is_newer else "munge"
    static = f"[1-{layout.nodes - layout.cloud}]"
    text = SLURM_CONF.format(
        root=layout.root,
        head=HEAD,
        head_address=layout.address(HEAD),
        nodes=f"n{static}",
        node_addresses=f"10.77.0.{static}",
        gpus=GPUS_PER_NODE,
        auth=auth,
        credentials="auth/slurm" if is_newer else "cred/munge",
        topology="TopologyPlugin=topology/block\n" if is_newer else "",
        accounting=accounting.WITH if layout.accounting else accounting.WITHOUT,
    )
    write_changed(layout.slurm_conf, text + _write_cloud(layout))
    if is_newer:
        block = f"BlockName=b1 Nodes={nodes}\nBlockSizes=1\n"
        write_changed(folder / "topology.conf", block)
    if layout.accounting:
        accounting.write_accounting(layout, auth=auth)
    gpu_files = folder / f"gpu[0-{GPUS_PER_NODE - 1}]"
    write_changed(folder / "gres.conf", f"NodeName={nodes} Name=gpu File={gpu_files}\n")
    nowhere = folder / "no-cgroups"
    write_changed(
        folder / "cgroup.conf",
        f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={nowhere}\nCgroupAutomount=no\n",
    )
    for index in range(GPUS_PER_NODE):
        device = folder / f"gpu{index}"
        if not device.exists():
            os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    for name in ("munge.key", "slurm.key"):  # the second, of auth/slurm, is found beside slurm.conf
        key = folder / name
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(128))
    (layout.host_dir(HEAD) / "state").mkdir(parents=True, exist_ok=True)
    for name in layout.node_names:
        (layout.host_dir(name) / "spool").mkdir(parents=True, exist_ok=True)


def daemons(layout: Layout, host: str) -> dict[str, list[str]]:
    """Return program name -> command line of the Slurm daemons of one host, in order.

    Each puts itself into the background once it is ready to serve. munged listens at its
    usual place in the host's private /run, so ``munge | unmunge`` works with no option.
    """
    logs = layout.host_dir(host)
    munge = [
        "munged",
        f"--key-file={layout.slurm_conf.parent / 'munge.key'}",
        f"--log-file={logs / 'munged.log'}",
        "--socket=/run/munge/munge.socket.2",
        "--seed-file=/run/munge/munged.seed",
        "--pid-file=/run/munge/munged.pid",
    ]
    if host != HEAD:
        powered = ["setsid", "--fork", "bash", str(POWERED), str(layout.power / host)]
        slurmd = {"powered": powered} if host in layout.cloud_names else {"slurmd": ["slurmd"]}
        return {"munged": munge, **slurmd}
    database = accounting.daemons(layout) if layout.accounting else {}
    return {"munged": munge, **database, "slurmctld": ["slurmctld"]}


def all_idle(sinfo: str, nodes: Iterable[str]) -> bool:
    """Tell from ``sinfo --Node --noheader --format='%N %T'`` whether nodes can take jobs.

    Nodes at work count as well: a lab may be brought up again while jobs run in it.
    """
    states = dict(line.split() for line in sinfo.splitlines() if len(line.split()) == 2)
    return all(states.get(name) in {"idle", "mixed", "allocated", "completing"} for name in nodes)


def log_tails(layout: Layout, *, lines: int = 8) -> str:
    """Return the last lines of every daemon's log, for the message of a failed start."""
    tails = []
    for path in sorted(Path(layout.root / "hosts").glob("*/*.log")):
        last = path.read_text(errors="replace").splitlines()[-lines:]
        if last:
            tails.append(f"--- {path}\n" + "\n".join(last))
    return "\n".join(tails)
