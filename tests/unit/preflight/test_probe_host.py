"""Probes of hosts, folders, peers and containers: run for real, and their parsers."""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterkit.preflight.probes.gpu import nvidia_links
from clusterkit.preflight.probes.host import (
    container,
    fabric_files,
    job_python,
    placement,
    shared_folders,
)
from clusterkit.preflight.probes.host import disks as host_disks
from clusterkit.preflight.probes.host import names as host_names
from clusterkit.preflight.probes.host import system as host_system
from clusterkit.preflight.probes.net import links
from clusterkit.transport import slurm_nodes
from clusterkit.transport.probe import Missing, Output, PreflightJob, Probe, read_output
from tests.helpers.probe_run import SHELLS, run_compound, run_probe

JOB = PreflightJob(hosts=("n1", "n2"), python=sys.executable, paths=("/tmp",))

SYSTEM = """kernel=6.1.0-18-amd64
arch=x86_64
os=Debian GNU/Linux 12 (bookworm)
cpus=64
governors=performance powersave
cpufreq_driver=acpi-cpufreq
MemTotal=527987000
MemAvailable=500000000
Hugetlb=2097152
thp=madvise
rdma=mlx5_0 mlx5_1
nvidia=8
end
"""
LIMITS = """Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max open files            1024                 1048576              files     
Max locked memory         unlimited            unlimited            bytes     
Max nice priority         0                    0                    
"""  # noqa: W291 - as the kernel prints it
DISKS = """kib=tmpfs             24682416         0  24682416       0% /dev/shm
inodes=tmpfs              3085302         1   3085301       1% /dev/shm
kib=/dev/mapper/my vg 264212084 264212084 -1000     100% /
inodes=/dev/mapper/my vg  0 0 0 - /
end
"""
NAMES = """name n1.cluster
own 10.0.0.1 fe80::1%eth0
reverse 10.0.0.1 n1.cluster n1
local 10.0.0.1 127.0.0.1
host n1 10.0.0.1
host n2
end
"""
PYTHON = """executable=/opt/env/bin/python
version=3.11.7
noexec=0
package clusterkit-launch=0.1.0
package torch=2.5.1
package nvidia-nccl-cu12=2.21.5
built torch=2.5.1+cu124
built cuda=12.4
built hip=
whole=1
end
"""
FOLDERS = """folder=0
state=ok
writable=1
inode=5308498
kib=nas:/export/home 264212084 24572936  81817976      24% /home
inodes=nas:/export/home       16777216 443418 16333798    3% /home
type=nfs4 rw,relatime,vers=4.2,soft,addr=10.0.0.9
marker=.clusterkit-preflight-1
folder=1
state=hung
end
"""
PEER = "code=255\npeer=n2\nsaid=Host key verification failed.\nend\n"
CONTAINER = "version=28.2.2\ndigest=sha256:0123\ntoolkit=1.17.8\nend\n"
RECORD = "NodeName=n1 Gres=gpu:a100:8(S:0-1,3),nic:2 OS=Linux 6.1 #1 SMP State=IDLE*+DRAIN \n"

EXAMPLES: list[tuple[Probe[Any], str]] = [
    (host_system.PROBE, SYSTEM),
    (host_system.LIMITS, LIMITS),
    (host_disks.PROBE, DISKS),
    (host_names.PROBE, NAMES),
    (job_python.PROBE, PYTHON),
    (shared_folders.PROBE, FOLDERS),
    (links.PEER_LOGIN, PEER),
    (container.PROBE, CONTAINER),
    (fabric_files.PLUGIN, "failed libnccl-net.so=libfabric.so.1: no such file\nwhole=1\nend\n"),
    (fabric_files.FILES, "file 4038471504-75 /opt/topo.xml\nabsent - /opt/env.sh\nend\n"),
    (fabric_files.IMAGE, "lacks /opt/topo.xml=\nopened=libnccl-net.so\nwhole=1\nend\n"),
    (placement.PROBE, "cloud=gcp\nblock=/b1/s1/h1\nspot=FALSE\nevents=NONE\nend\n"),
    (nvidia_links.IMEX, "channel=open\nstate=READY\nnodes=10.9.0.1\nend\n"),
    (placement.BLOCK, "block=b1\nend\n"),
    (slurm_nodes.PROBE, RECORD),
]


def test_a_locale_that_is_not_english_changes_nothing() -> None:
    """Tools would else answer in words, and with commas in numbers, that no parser knows."""
    probe = Probe(name="locale", command='echo "$LC_ALL $LANG ${LANGUAGE-none}"', parse=str)
    words = ("env", "LC_ALL=de_DE.UTF-8", "LANG=de_DE.UTF-8", "LANGUAGE=de:fr", "sh", "-s")
    assert run_compound((probe,), JOB, words=words)["locale"].stdout == "C C none\n"


@pytest.mark.parametrize("cut", range(1, 5))
@pytest.mark.parametrize(
    ("probe", "text"), EXAMPLES[2:8], ids=lambda value: getattr(value, "name", "")
)
def test_an_answer_that_lost_its_end_is_unknown(probe: Probe[Any], text: str, cut: int) -> None:
    """A full disk or a cut connection never makes a smaller number of a larger one."""
    facts = read_output(probe, Output(stdout=text[:-cut]))
    if cut > 1:
        assert isinstance(facts, Missing)
        assert facts.verdict == "unknown"


def test_what_a_system_says_is_read() -> None:
    """Blanks in names, lists, and parts that are missing."""
    system = host_system.parse(SYSTEM)
    assert (system.cpus, system.nvidia_gpus) == (64, 8)
    assert system.governors == ("performance", "powersave")
    assert system.rdma_devices == ("mlx5_0", "mlx5_1")
    old = host_system.parse(SYSTEM.replace("MemAvailable=500000000\nHugetlb=2097152\n", ""))
    assert (old.available_kib, old.huge_kib) == (None, None)


def test_limits_are_read() -> None:
    """The soft column counts; unlimited is None and not a number."""
    limits = host_system.parse_limits(LIMITS)
    assert limits.open_files == 1024
    assert limits.locked_bytes is None


def test_disks_are_read() -> None:
    """Names with blanks, nothing left below zero, and no inodes counted."""
    disks = host_disks.parse(DISKS)
    assert disks.shm is not None
    assert disks.tmp is not None
    assert (disks.shm.mount, disks.shm.inodes_available) == ("/dev/shm", 3085301)
    assert (disks.tmp.source, disks.tmp.available_kib) == ("/dev/mapper/my vg", 0)
    assert (disks.tmp.inodes, disks.tmp.inodes_available) == (None, None)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "probe",
    [host_system.PROBE, host_system.LIMITS, host_disks.PROBE, host_names.PROBE],
    ids=lambda probe: probe.name,
)
def test_snippets_run_in_every_shell(probe: Probe[Any], shell: tuple[str, ...]) -> None:
    """Each parses on this machine, with nothing on standard error."""
    output = run_probe(probe, JOB, shell=shell)
    facts = read_output(probe, output)
    assert not isinstance(facts, Missing), facts
    assert output.stderr == ""


def test_this_machine_is_described_as_python_sees_it() -> None:
    """Processors, memory and limits agree with what the standard library says."""
    outputs = run_compound([host_system.PROBE, host_system.LIMITS], JOB)
    system = host_system.parse(outputs["host-system"].stdout)
    assert system.cpus == os.cpu_count()
    assert system.kernel == os.uname().release
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert system.memory_kib == pages // 1024
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert host_system.parse_limits(outputs["host-limits"].stdout).open_files == soft


def test_the_interpreter_is_asked() -> None:
    """Our own interpreter says the versions of what is installed."""
    output = run_probe(job_python.PROBE, JOB)
    python = job_python.parse(output.stdout)
    assert python is not None
    assert python.version == ".".join(map(str, sys.version_info[:3]))
    assert not python.noexec


@pytest.mark.parametrize(
    ("version_py", "expected"),
    [
        ("__version__ = '2.5.1+cu124'\ncuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n",
         ("2.5.1+cu124", "12.4", None)),
        ('__version__ = "1.8.0"\ncuda = "11.1"\nhip = None\n', ("1.8.0", "11.1", None)),
        ("__version__ = '2.6.0+rocm6.2'\ncuda: Optional[str] = None\nhip = '6.2.41133'\n",
         ("2.6.0+rocm6.2", None, "6.2.41133")),
    ],
)  # fmt: skip
def test_what_torch_was_built_for_is_read(
    tmp_path: Path, version_py: str, expected: tuple[str, str | None, str | None]
) -> None:
    """A package that would fail when imported; its version.py says all."""
    package = tmp_path / "its own packages" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "version.py").write_text(version_py)
    path = {"PYTHONPATH": str(package.parent)}
    job = PreflightJob(hosts=("n1",), python=sys.executable, env=path)
    python = job_python.parse(run_probe(job_python.PROBE, job).stdout)
    assert python is not None
    assert (python.torch, python.cuda, python.hip) == expected


def test_the_first_mpirun_of_those_named_is_found(tmp_path: Path) -> None:
    """On PATH, or by its path; what is no program is none."""
    tool = tmp_path / "its own" / "mpirun.mpich"
    tool.parent.mkdir()
    tool.touch(mode=0o755)
    (tool.parent / "mpirun.intel").touch()
    env = {"PATH": f"{tool.parent}:/usr/bin:/bin"}
    job = PreflightJob(hosts=("n1",), python=sys.executable, env=env)
    for names, found in (
        (("no-mpirun", "mpirun.intel", tool.name), str(tool)),
        ((str(tool),), str(tool)),
        (("mpirun.intel",), None),
        ((), None),
    ):
        asked = dataclasses.replace(job, mpirun=names)
        python = job_python.parse(run_probe(job_python.PROBE, asked).stdout)
        assert python is not None
        assert python.mpirun == found


def test_an_interpreter_that_is_not_there_is_none() -> None:
    """Not an error of the probe: the check says what it means."""
    job = PreflightJob(hosts=("n1",), python="/no such/python'3")
    assert job_python.parse(run_probe(job_python.PROBE, job).stdout) is None


def test_an_interpreter_that_crashes_is_unknown(tmp_path: Path) -> None:
    """What it says instead of a version is handed on."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'libpython3.so: cannot open' >&2\nexit 127\n")
    broken.chmod(0o755)
    job = PreflightJob(hosts=("n1",), python=str(broken))
    facts = read_output(job_python.PROBE, run_probe(job_python.PROBE, job))
    assert isinstance(facts, Missing)
    assert "libpython3.so" in facts.reason


@pytest.mark.parametrize("shell", SHELLS)
def test_folders_are_looked_into(tmp_path: Path, shell: tuple[str, ...]) -> None:
    """There, absent, no folder; names with blanks and quotes; the marker only in the first."""
    first = tmp_path / "it's a run"
    first.mkdir()
    (first / ".mark").write_text(".mark\n")
    file = tmp_path / "file"
    file.write_text("")
    paths = (str(first), str(tmp_path / "none"), str(file), str(tmp_path))
    job = PreflightJob(hosts=("n1",), paths=paths, marker=".mark")
    output = run_probe(shared_folders.PROBE, job, shell=shell)
    folders = shared_folders.parse(output.stdout)
    assert [folder.state for folder in folders] == ["ok", "absent", "denied", "ok"]
    assert folders[0].marker == ".mark"
    assert folders[3].marker is None
    assert folders[0].inode == first.stat().st_ino
    assert folders[0].writable
    assert folders[0].volume is not None
    assert folders[0].kind


def test_a_marker_that_is_not_there_is_not_seen(tmp_path: Path) -> None:
    """The folder is fine, and another one."""
    job = PreflightJob(hosts=("n1",), paths=(str(tmp_path),), marker=".mark")
    (folder,) = shared_folders.parse(run_probe(shared_folders.PROBE, job).stdout)
    assert (folder.state, folder.marker) == ("ok", None)


def test_names_are_asked_of_all_or_of_a_spread() -> None:
    """The head is always among them, and the list stays short."""
    few = tuple(f"n{i}" for i in range(64))
    assert host_names.names_to_resolve(few) == few
    assert host_names.names_to_resolve(()) == ()
    many = host_names.names_to_resolve(tuple(f"n{i}" for i in range(4096)))
    assert many[0] == "n0"
    assert len(many) == 64


def test_names_are_read() -> None:
    """Addresses of both families, several names, and one that does not resolve."""
    names = host_names.parse(NAMES)
    assert names.own == ("10.0.0.1", "fe80::1%eth0")
    assert names.reverse == ("n1.cluster", "n1")
    assert names.hosts == {"n1": ("10.0.0.1",), "n2": ()}


def test_a_peer_is_the_next_node_of_the_ring(tmp_path: Path) -> None:
    """With an ssh that gets in everywhere; the nodes do not exist."""
    (tmp_path / "ssh").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "ssh").chmod(0o755)
    me = os.uname().nodename
    for hosts, expected in (
        (("a", me, "b"), "b"),
        (("a", "b", me), "a"),
        ((me, "b"), "b"),
        (("a", "b"), "a"),
    ):
        job = PreflightJob(hosts=hosts, peer_ssh=True)
        output = run_probe(links.PEER_LOGIN, job, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
        assert links.parse_login(output.stdout).peer == expected, output


@pytest.mark.parametrize(
    "job",
    [
        PreflightJob(hosts=("a", "b"), framework="mpi"),
        PreflightJob(hosts=("a",), peer_ssh=True),
        PreflightJob(hosts=("a", "b"), peer_ssh=True, kind="local"),
    ],
)
def test_peers_are_asked_only_where_something_logs_in(job: PreflightJob) -> None:
    """Jobs, also of MPI, one node, and one machine need no login from node to node."""
    assert links.PEER_LOGIN.snippet(job) is None


def test_a_list_of_nodes_never_outgrows_an_argument() -> None:
    """Linux takes 128 KiB; in a job of that size every node tries the head."""
    hosts = tuple(f"a-rather-long-name-of-a-node-{i:05}.cluster.example" for i in range(4096))
    for probe in (links.PEER_LOGIN, host_names.PROBE):
        snippet = probe.snippet(PreflightJob(hosts=hosts, peer_ssh=True))
        assert snippet is not None
        assert len(snippet) < 131_072


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("runtime", ["docker", "apptainer", "enroot", "pyxis"])
def test_a_container_runtime_that_is_not_there_is_absent(
    runtime: str, shell: tuple[str, ...]
) -> None:
    """What `command -v` finds decides, in every shell."""
    job = PreflightJob(hosts=("n1",), container_runtime=runtime, image="img")
    output = run_probe(container.PROBE, job, shell=shell)
    facts = container.parse(output.stdout)
    tool = "enroot" if runtime == "pyxis" else runtime
    assert facts.installed == (shutil.which(tool) is not None)


def test_an_image_file_is_told_apart_by_its_ends(tmp_path: Path) -> None:
    """Same size, another last byte; and a file that is missing."""
    tool = tmp_path / "apptainer"
    tool.write_text("#!/bin/sh\necho apptainer version 1.3.4\n")
    tool.chmod(0o755)
    digests = []
    for name, text in (("a.sif", "x" * 3_000_000), ("b.sif", "x" * 2_999_999 + "y")):
        (tmp_path / name).write_text(text)
        digests.append(_image(tmp_path, name))
    assert digests[0] != digests[1]
    assert _image(tmp_path, "a.sif") == digests[0]
    assert _image(tmp_path, "c.sif") == ""


def _image(folder: Path, name: str) -> str | None:
    job = PreflightJob(hosts=("n1",), container_runtime="apptainer", image=str(folder / name))
    env = {"PATH": f"{folder}:{os.environ['PATH']}"}
    facts = container.parse(run_probe(container.PROBE, job, env=env).stdout)
    assert facts.version == "apptainer version 1.3.4"
    return facts.digest


FAKES = {
    "docker": """case "$1" in
version) echo 28.2.2 ;;
image) [ "$5" = 'img:1' ] && echo sha256:0123 || { echo "No such image: $5" >&2; exit 1; } ;;
esac""",
    "enroot": """case "$1" in
version) echo 3.5.0 ;;
list) echo other; echo img:1 ;;
esac""",
    "nvidia-ctk": "echo 'NVIDIA Container Toolkit CLI version 1.17.8'",
}
"""Doubles of what cannot run here: a Docker daemon, enroot, NVIDIA's toolkit."""


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("runtime", "image", "version", "digest"),
    [
        ("docker", "img:1", "28.2.2", "sha256:0123"),
        ("docker", "img:2", "28.2.2", ""),
        ("enroot", "img:1", "3.5.0", "unpacked"),
        ("enroot", "img", "3.5.0", ""),
        ("pyxis", "nvcr.io#nvidia/pytorch:25.01", "3.5.0", None),
    ],
)
def test_what_runtimes_answer_is_read(
    tmp_path: Path,
    shell: tuple[str, ...],
    runtime: str,
    image: str,
    version: str,
    digest: str | None,
) -> None:
    """Versions, an image that is there or not, and one that is fetched later."""
    for name, body in FAKES.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    job = PreflightJob(hosts=("n1",), container_runtime=runtime, image=image)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    facts = container.parse(run_probe(container.PROBE, job, shell=shell, env=env).stdout)
    assert (facts.version, facts.digest, facts.toolkit) == (version, digest, "1.17.8")
