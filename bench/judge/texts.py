"""What the nodes of the made-up cluster print, apart from their GPUs."""

from __future__ import annotations

import random
from collections.abc import Mapping

from clusterkit.preflight.probes.host.names import names_to_resolve
from clusterkit.transport.probe import PreflightJob

XID = (
    "[81234.512345] NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, "
    "GPU has fallen off the bus.\n"
)

_SHARED = "/home/ada/.clusterkit/runs"
_BUSES = ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")


def job(hosts: tuple[str, ...]) -> PreflightJob:
    """Return the job that the whole cluster is asked for."""
    return PreflightJob(
        hosts=hosts,
        kind="slurm",
        framework="torchrun",
        python="/home/ada/venv/bin/python",
        gpus_per_node=8,
        env={"NCCL_SOCKET_IFNAME": "ib0", "NCCL_IB_HCA": "=" + ",".join(_hcas())},
        paths=(_SHARED,),
        marker=".clusterkit-preflight-0123456789ab",
        port=29500,
        container_runtime="apptainer",
        image="/home/ada/images/torch.sif",
        asks_cloud=False,
    )


def host(name: str, number: int, job: PreflightJob, chance: random.Random) -> Mapping[str, str]:
    """Return what one node prints, by probe."""
    return {
        "host-names": _names(name, number, job),
        "host-system": _SYSTEM.format(available=chance.randint(2_050_000_000, 2_110_000_000)),
        "host-limits": _LIMITS,
        "host-disks": _disks(chance),
        "pci-gpus": "pci 8\n"
        + "".join(f"0000:{b}:00.0 0x030200 0x10de:0x2330 nvidia- de103023\n" for b in _BUSES),
        "rdma-ports": "".join(_port(index, number) for index in range(8)),
        "rdma-counters": _counters(chance),
        "gpudirect": _GPUDIRECT,
        "net-interfaces": "eth0|1500|25000|1\nib0|4092|400000|32\n",
        "interfaces": (
            "interface|eth0|up\ninterface|ib0|up\ninterface|lo|unknown\n"
            f"address|lo|127.0.0.1/8\naddress|eth0|{_address(number)}/16\n"
            f"address|ib0|{_address(number, net=11)}/16\n"
        ),
        "nccl-env": "",
        "nccl-conf": "",
        "shared-folders": _folders(job, chance),
        "container": "version=apptainer version 1.3.4\n"
        "digest=9126805504 bytes, ends 0a1b2c3d4e5f6071\ntoolkit=1.17.4\nend\n",
        "slurm-node": _SLURM.format(name=name, free=chance.randint(1_900_000, 2_000_000)),
    }


def _hcas() -> list[str]:
    return [f"mlx5_{index}" for index in range(8)]


def _address(number: int, *, net: int = 10) -> str:
    return f"10.{net}.{number // 250}.{number % 250 + 1}"


def _names(name: str, number: int, job: PreflightJob) -> str:
    wanted = names_to_resolve(job.hosts)
    step = -(-len(job.hosts) // len(wanted))
    looked_up = "".join(f"host {h} {_address(k * step)} \n" for k, h in enumerate(wanted))
    own = _address(number)
    return (
        f"name {name}\nown {own} \nreverse {own} {name}.cluster.example {name} \n"
        f"local 10.10.0.0 {own} 10.11.0.0 {_address(number, net=11)} 127.0.0.0 127.0.0.1 \n"
        f"{looked_up}end\n"
    )


def _port(index: int, number: int) -> str:
    lid = 1 + number * 8 + index
    return (
        f"device|mlx5_{index}|28.39.1002|MT_0000000838|MT4129\n"
        f"port|mlx5_{index}|1|4: ACTIVE|5: LinkUp|400 Gb/sec (4X NDR)|InfiniBand|{lid:#x}|0x1\n"
    )


def _counters(chance: random.Random) -> str:
    """Some ports have counted a few errors since they were set up; none counts now."""
    old = {
        n: f" symbol_error={chance.randint(1, 9)}" if chance.random() < 0.1 else ""
        for n in range(8)
    }
    return "".join(f"{k} mlx5_{n}/ports/1{old[n]}\n" for k in (1, 2) for n in range(8))


def _disks(chance: random.Random) -> str:
    shm, tmp = chance.randint(0, 9_000_000), chance.randint(20_000_000, 90_000_000)
    return (
        f"kib=tmpfs           1056784384 {shm} {1056784384 - shm}       1% /dev/shm\n"
        "inodes=tmpfs          264196096 12 264196084    1% /dev/shm\n"
        f"kib=/dev/nvme0n1p2 1843217020 {tmp} {1843217020 - tmp}       5% /\n"
        "inodes=/dev/nvme0n1p2 117128192 490493 116637699    1% /\n"
        "end\n"
    )


def _folders(job: PreflightJob, chance: random.Random) -> str:
    free = chance.randint(900_000_000_000, 900_000_900_000)
    return (
        "folder=0\nstate=ok\nwritable=1\ninode=144115205255725057\n"
        f"kib=10.10.250.1@o2ib:/scratch 1800000000000 {1800000000000 - free} {free} 50% /home\n"
        "inodes=10.10.250.1@o2ib:/scratch 4000000000 1000000000 3000000000 25% /home\n"
        "type=lustre rw,flock,lazystatfs,noatime\n"
        f"marker={job.marker}\nend\n"
    )


_SYSTEM = """\
kernel=5.15.0-112-generic
arch=x86_64
os=Ubuntu 22.04.4 LTS
cpus=192
governors=performance
cpufreq_driver=intel_pstate
MemTotal=2113568768
MemAvailable={available}
Hugetlb=0
thp=madvise
rdma=mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7
nvidia=8
end
"""

_LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max file size             unlimited            unlimited            bytes
Max data size             unlimited            unlimited            bytes
Max stack size            8388608              unlimited            bytes
Max core file size        0                    unlimited            bytes
Max resident set          unlimited            unlimited            bytes
Max processes             8255000              8255000              processes
Max open files            1048576              1048576              files
Max locked memory         unlimited            unlimited            bytes
Max address space         unlimited            unlimited            bytes
Max file locks            unlimited            unlimited            locks
Max pending signals       8255000              8255000              signals
Max msgqueue size         819200               819200               bytes
Max nice priority         0                    0
Max realtime priority     0                    0
Max realtime timeout      unlimited            unlimited            us
"""

_GPUDIRECT = """\
kernel 5.15.0-112-generic
module nvidia_peermem
NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.127.08  Tue Oct  8 01:54:16 UTC 2024
"""

_SLURM = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=48 CPUAlloc=0 CPUEfctv=192 CPUTot=192 CPULoad=0.31 "
    "AvailableFeatures=h100,ib ActiveFeatures=h100,ib Gres=gpu:h100:8(S:0-1) NodeAddr={name} "
    "NodeHostName={name} Version=23.11.10 "
    "OS=Linux 5.15.0-112-generic #122-Ubuntu SMP Thu May 23 07:48:21 UTC 2024 RealMemory=2063000 "
    "AllocMem=0 FreeMem={free} Sockets=2 Boards=1 State=IDLE ThreadsPerCore=2 TmpDisk=0 Weight=1 "
    "Owner=N/A MCS_label=N/A Partitions=gpu BootTime=2026-11-02T08:11:52 "
    "SlurmdStartTime=2026-11-02T08:13:20 CfgTRES=cpu=192,mem=2063000M,billing=192,gres/gpu=8 "
    "AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/a\n"
)
