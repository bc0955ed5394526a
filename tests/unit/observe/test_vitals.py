"""What nodes are doing now: probes run for real and over doubles, parsers, and rates."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterkit.observe.vitals import host as vitals_host
from clusterkit.observe.vitals.host import HostVitals, read_host
from clusterkit.observe.vitals.sample import (
    NodeSample,
    NodeVitals,
    ask_vitals,
    rates,
    read_samples,
    slowdowns,
)
from clusterkit.preflight.probes.gpu.vitals import AMD, NVIDIA, GpuVitals
from clusterkit.transport.local import LocalTransport
from clusterkit.transport.probe import Missing, Output, PreflightJob, Probe, Unparsed
from tests.helpers.mangling import mangled
from tests.helpers.needs import require
from tests.helpers.paths import TESTS
from tests.helpers.probe_run import SHELLS, run_probe
from tests.helpers.recordings import recording

JOB = PreflightJob(hosts=("n1",))
DOUBLES = TESTS / "doubles"
RUN = "train-20261122-101500-abc123"

STAT = "S 1 1 1 0 -1 4194304 100 0 0 0 {utime} {stime} 0 0 20 0 8 0 5000 1000000 256 184 1 1 0"
READING = f"""\
reading 1000.50
cpu  1000 200 300 8000 100 40 60 300 500 0
load 3.25
memory MemTotal: 1048576
memory MemFree: 1000
memory MemAvailable: 524288
memory SwapTotal: 1024
memory SwapFree: 512
cpus 4
net 1000 1 2 2000 0 0 eth0
port 100 200 mlx5_0/1
port 100 200 mlx5_1/1
quota 200000 100000 50 10 /job_5
limit 4294967296 1073741824 0 /job_5
task {RUN}:1,3 4242 (python3.11) {STAT.format(utime=900, stime=100)}
task {RUN}:1,- 4240 (a) b (c) {STAT.format(utime=1, stime=0)}
"""
LATER = f"""\
reading 1002.50
cpu  1300 200 400 8200 200 40 60 400 500 0
load 3.5
memory MemTotal: 1048576
memory MemAvailable: 262144
cpus 4
net 3000 1 6 10000 0 0 eth0
port 600 700 mlx5_0/1
quota 200000 100000 70 15 /job_5
task {RUN}:1,3 4242 (python3.11) {STAT.format(utime=1200, stime=200)}
"""
UNITS = "units 100 4096\n"
ROCM = (
    '{"card1": {"GPU use (%)": "97", "VRAM Total Memory (B)": "206141652992",\n'
    '"VRAM Total Used Memory (B)": "1073741824", "Temperature (Sensor junction) (C)": "71.0",\n'
    '"Current Socket Graphics Package Power (W)": "641.0",\n'
    '"Max Graphics Package Power (W)": "750.0", "Card Series": "AMD Instinct MI300X"},\n'
    '"card0": {"GPU use (%)": "0", "VRAM Total Memory (B)": "N/A"}}\n'
)
MANY = settings(max_examples=80, suppress_health_check=list(HealthCheck))


def reading(text: str = READING) -> HostVitals:
    (found,) = read_host(UNITS + text)
    return found


def sample(text: str = READING, *gpus: GpuVitals) -> NodeSample:
    return NodeSample(host=reading(text), gpus=gpus)


def gpu(index: int = 0, **more: Any) -> GpuVitals:
    said = {
        "name": "NVIDIA H100", "busy_percent": 97.0, "memory_used_mib": 70000.0,
        "memory_mib": 81559.0, "temperature_c": 61.0, "power_w": 640.0, "power_limit_w": 700.0,
    }  # fmt: skip
    return GpuVitals(index=index, **{**said, **more})


def test_a_reading_of_the_host() -> None:
    host = reading()
    assert (host.uptime_s, host.cpus, host.load) == (1000.5, 4, 3.25)
    assert (host.ticks.busy, host.ticks.idle, host.ticks.total) == (1600, 8000, 10_000)
    assert (host.memory_bytes, host.available_bytes) == (1 << 30, 1 << 29)
    assert (host.swap_bytes, host.swap_free_bytes) == (1 << 20, 1 << 19)
    (interface,) = host.interfaces
    assert (interface.received_bytes, interface.sent_bytes) == (1000, 2000)
    assert (interface.errors, interface.dropped) == (1, 2)
    assert [(p.name, p.received_bytes, p.sent_bytes) for p in host.ports] == [
        ("mlx5_0/1", 400, 800),
        ("mlx5_1/1", 400, 800),
    ]
    (quota,) = host.quotas
    assert (quota.cpus, quota.periods, quota.throttled) == (2.0, 50, 10)
    (limit,) = host.limits
    assert (limit.limit_bytes, limit.used_bytes, limit.oom_kills) == (4 << 30, 1 << 30, 0)
    rank, other = host.processes
    assert (rank.pid, rank.run, rank.node_rank, rank.rank) == (4242, RUN, 1, 3)
    assert (rank.command, rank.state, rank.cpu_s, rank.threads) == ("python3.11", "S", 10.0, 8)
    assert (rank.memory_bytes, rank.started_ticks) == (1 << 20, 5000)
    assert (other.rank, other.command) == (None, "a) b (c")


def test_a_port_without_counters_is_left_out() -> None:
    """As earlier snippets told it: saved answers have it."""
    more = "port N/A (no PMA) N/A (no PMA) efa_0/1\nport - - irdma0/1\nport 7 - irdma0/2\n"
    assert reading(READING + more) == reading()


def test_a_kernel_that_does_not_say_what_is_available() -> None:
    text = READING.replace("MemAvailable: 524288", "Cached: 3000")
    assert reading(text).available_bytes == 4000 * 1024


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no units"),
        ("units 0 4096\n" + READING, "no units"),
        (UNITS, "no reading"),
        (UNITS + READING.partition("cpus")[0], "cut off"),
        (UNITS + "net 1 2 3 4 5 6 eth0\n" + READING, "before a reading"),
        (UNITS + READING + "net 1 2 3 eth0\n", "line 'net"),
        (UNITS + READING + "port ? 1 mlx5_0/1\n", "line 'port"),
        (UNITS + READING + "quota 1 0 1 1 /x\n", "no period"),
        (UNITS + READING + f"task {RUN}:0,0 1 (a) S 1 2\n", "process is cut off"),
    ],
)
def test_what_is_no_reading(text: str, why: str) -> None:
    with pytest.raises(Unparsed, match=why):
        read_host(text)


@MANY
@given(data=st.data())
@pytest.mark.parametrize(
    ("probe", "text"),
    [(vitals_host.TWICE, UNITS + READING + LATER), (AMD, ROCM)],
    ids=["host", "amd"],
)
def test_mangled_answers(probe: Probe[Any], text: str, data: st.DataObject) -> None:
    _read(probe, text, data)


@MANY
@given(data=st.data())
@pytest.mark.parametrize(
    "file", ["csv_h100_mig_full.csv", "csv_h200_idle_full.csv", "csv_rtx4080s_idle_full.csv"]
)
def test_mangled_recordings(file: str, data: st.DataObject) -> None:
    _read(NVIDIA, recording(file), data)


def _read(probe: Probe[Any], text: str, data: st.DataObject) -> None:
    assert probe.parse(text)
    try:
        found = probe.parse(data.draw(mangled(text)))
    except Unparsed:
        return
    assert found == found  # noqa: PLR0124 - a value, in which no figure is NaN


def test_recordings_of_gpus() -> None:
    idle = NVIDIA.parse(recording("csv_h200_idle_full.csv")).gpus
    assert idle, "no GPU in the recording"
    first = idle[0]
    assert "H200" in first.name
    assert first.memory_mib is not None
    assert first.memory_mib > 140_000
    assert first.power_w is not None
    assert first.clock_reasons == 1
    (mig,) = NVIDIA.parse(recording("csv_h100_mig_full.csv")).gpus[:1]
    assert mig.busy_percent is None  # the driver has none where MIG is on


def test_a_gpu_that_is_lost_is_told_beside_the_others() -> None:
    words = "Unable to determine the device handle for GPU2: 0000:9B:00.0: Unknown Error"
    found = NVIDIA.parse(f"index, name\n0, NVIDIA H100\n{words}\n1, NVIDIA H100\n")
    assert [one.index for one in found.gpus] == [0, 1]
    assert found.problem == words
    assert NVIDIA.parse(words).gpus == ()


def test_amd_gpus_by_rocm_smi() -> None:
    quiet, busy = AMD.parse("WARNING: low-power state\n" + ROCM).gpus
    assert (quiet.index, quiet.busy_percent, quiet.memory_mib) == (0, 0.0, None)
    assert (busy.name, busy.busy_percent, busy.temperature_c) == ("AMD Instinct MI300X", 97.0, 71.0)
    assert (busy.memory_used_mib, busy.power_w, busy.power_limit_w) == (1024.0, 641.0, 750.0)


def test_rates_between_two_readings() -> None:
    found = rates(sample(), sample(LATER))
    assert found is not None
    assert (found.seconds, found.cpu_percent) == (2.0, 50.0)
    assert (found.waiting_percent, found.stolen_percent) == (12.5, 12.5)
    (net,) = found.interfaces
    assert (net.received_bytes_per_s, net.sent_bytes_per_s, net.errors_per_s) == (1000, 4000, 2)
    (port,) = found.ports  # the other one has gone
    assert (port.name, port.received_bytes_per_s, port.sent_bytes_per_s) == ("mlx5_0/1", 1000, 1000)
    assert (found.throttled_percent, found.throttled_at_cpus) == (25.0, 2.0)
    assert found.process_cpu_percent == {4242: 200.0}


def test_processes_killed_between_two_readings() -> None:
    limits = "limit 100 50 {} /job_5\nlimit 200 50 {} \n"
    before = sample(READING + limits.format(3, 5))
    found = rates(before, sample(LATER + limits.format(3, 7)))
    assert found is not None
    assert [(one.path, one.oom_kills) for one in found.killed_at] == [("", 2)]
    again = rates(before, sample(LATER + limits.format(0, 5) + "limit 9 9 9 /new\n"))
    assert again is not None
    assert again.killed_at == ()


def test_one_kill_is_told_at_the_innermost_limit_alone() -> None:
    """The kernel counts it for every cgroup above that of the process."""
    paths = ("/slurm/job_5/step_0", "/slurm/job_5", "/slurm/job_55", "/slurm", "")
    told = "".join(f"limit {512 << k} 50 {{}} {path}\n" for k, path in enumerate(paths))
    before = sample(READING + told.format(0, 0, 0, 0, 0))
    found = rates(before, sample(LATER + told.format(1, 1, 0, 1, 1)))
    assert found is not None
    assert [(one.path, one.oom_kills) for one in found.killed_at] == [("/slurm/job_5/step_0", 1)]
    found = rates(before, sample(LATER + told.format(0, 2, 1, 3, 3)))
    assert found is not None
    assert [(one.path, one.oom_kills) for one in found.killed_at] == [
        ("/slurm/job_5", 2),
        ("/slurm/job_55", 1),
    ]


def test_nothing_is_said_of_counters_that_were_reset() -> None:
    found = rates(sample(LATER.replace("1002.50", "1000.50")), sample(READING))
    assert found is None  # fewer ticks: another boot
    assert rates(sample(), sample()) is None  # no time has passed
    reset = LATER.replace("net 3000", "net 3").replace("port 600", "port 6")
    reset = reset.replace("70 15", "7 1").replace(" 5000 1000000", " 6000 1000000")
    found = rates(sample(), sample(reset))
    assert found is not None
    assert (found.interfaces, found.ports, found.throttled_percent) == ((), (), None)
    assert found.process_cpu_percent == {}  # the pid is another process's now


@MANY
@given(data=st.data())
def test_rates_of_any_two_readings_are_sound(data: st.DataObject) -> None:
    readings: list[HostVitals] = []
    for text in (READING, LATER):
        try:
            readings += read_host(UNITS + data.draw(mangled(text)))
        except Unparsed:
            return
    first, last = readings[0], readings[-1]
    found = rates(NodeSample(host=first), NodeSample(host=last))
    if found is None:
        return
    shares = (found.cpu_percent, found.waiting_percent, found.stolen_percent)
    assert all(0 <= share <= 100 for share in (*shares, found.throttled_percent or 0))
    for traffic in (*found.interfaces, *found.ports):
        assert min(traffic.received_bytes_per_s, traffic.sent_bytes_per_s) >= 0
    assert all(percent >= 0 for percent in found.process_cpu_percent.values())


def test_what_holds_clocks_down() -> None:
    gpus = [gpu(k, clock_reasons=mask) for k, mask in enumerate((None, 0x1, 0x4, 0x48, 0x20, 0x8))]
    assert [(s.index, s.why, s.harmful) for s in slowdowns(gpus)] == [
        (2, "power cap", False),
        (3, "hardware thermal slowdown", True),
        (4, "software thermal slowdown", True),
        (5, "hardware slowdown", True),
    ]


@pytest.mark.parametrize("shell", SHELLS)
def test_this_machine(shell: Sequence[str]) -> None:
    env = {**os.environ, "CK_JOB_UID": f"{RUN}:0", "RANK": "5"}
    output = run_probe(vitals_host.TWICE, JOB, shell=shell, env=env)
    assert (output.exit_code, output.stderr) == (0, "")
    before, after = vitals_host.TWICE.parse(output.stdout)
    assert before.cpus == os.cpu_count()
    assert 0 < before.available_bytes <= before.memory_bytes
    assert before.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    mine = [one for one in after.processes if one.run == RUN]
    assert {one.rank for one in mine} == {5}  # the shell itself
    found = rates(NodeSample(host=before), NodeSample(host=after))
    assert found is not None
    assert found.seconds >= 1


AGENT = {"TORCHELASTIC_RUN_ID": "none"}
"""What torch's agent sets beside the RANK of a process."""
KIN: dict[str, list[tuple[dict[str, str], int | None]]] = {
    "torchrun-under-pmi2": [
        ({"PMI_RANK": "1"}, None),
        ({"PMI_RANK": "1", "RANK": "2", **AGENT}, 2),
        ({"PMI_RANK": "1", "RANK": "3", **AGENT}, 3),
    ],
    "torchrun-under-mpirun": [
        ({"OMPI_COMM_WORLD_RANK": "0"}, None),
        ({"OMPI_COMM_WORLD_RANK": "0", "RANK": "0"}, 0),
        ({"OMPI_COMM_WORLD_RANK": "0", "RANK": "1"}, 1),
    ],
    "torchrun-with-one-slot-a-node": [
        ({"PMI_RANK": "1"}, None),
        ({"PMI_RANK": "1", "RANK": "1", **AGENT}, 1),
    ],
    "deepspeed-with-one-slot-a-node": [
        ({"PMI_RANK": "1"}, None),
        ({"PMI_RANK": "1", "RANK": "1", "CROSS_RANK": "1"}, 1),
    ],
    "horovod-with-one-slot-a-node": [
        ({"PMI_RANK": "1"}, None),
        ({"PMI_RANK": "1", "HOROVOD_RANK": "1"}, 1),
    ],
    "mpi-alone": [({"OMPI_COMM_WORLD_RANK": "4"}, 4), ({"OMPI_COMM_WORLD_RANK": "5"}, 5)],
    "mpi-whose-script-tells-torch": [
        ({"OMPI_COMM_WORLD_RANK": "4"}, 4),
        ({"OMPI_COMM_WORLD_RANK": "4", "RANK": "4"}, 4),
    ],
    "no-number": [({"RANK": "rank one"}, None), ({"RANK": "first"}, None)],
}
"""Processes of a job on a node by their variables, and which rank each is."""


@pytest.mark.parametrize("shell", SHELLS)
def test_which_process_is_which_rank(shell: Sequence[str]) -> None:
    bare = {name: value for name, value in os.environ.items() if not name.endswith("RANK")}
    expected: dict[tuple[str, int], int | None] = {}
    with ExitStack() as stack:
        for name, processes in KIN.items():
            run = f"{name}-20261122-101500-abc123"
            for variables, rank in processes:
                env = {**bare, **variables, "CK_JOB_UID": f"{run}:1"}
                process = stack.enter_context(subprocess.Popen(["sleep", "120"], env=env))
                stack.callback(process.kill)
                expected[run, process.pid] = rank
        output = run_probe(vitals_host.PROBE, JOB, shell=shell)
    (host,) = vitals_host.PROBE.parse(output.stdout)
    found = {(one.run, one.pid): one.rank for one in host.processes}
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("version", "gone", "left"),
    [
        (2, "memory.current", ""),
        (2, "memory.current", None),
        (2, "memory.events", None),
        (2, "cpu.stat", None),
        (1, "cpu.cfs_period_us", ""),
        (1, "cpu.cfs_period_us", None),
        (1, "cpu.stat", None),
    ],
)
def test_a_cgroup_that_ends_while_it_is_read_is_left_out(
    tmp_path: Path, shell: Sequence[str], version: int, gone: str, left: str | None
) -> None:
    files = _cgroups(version)
    (name,) = [name for name in files if name.endswith(gone)]
    del files[name]
    files |= {} if left is None else {name: left}
    host = _below(tmp_path, files, shell)
    memory = gone.startswith("memory")
    assert len(host.quotas) == (1 if memory else 0)
    assert len(host.limits) == (0 if memory or version == 1 else 1)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("version", [1, 2])
def test_cgroups_with_a_limit(tmp_path: Path, shell: Sequence[str], version: int) -> None:
    """The limit stands above the cgroup of the processes, as Slurm and Docker set it."""
    files = _cgroups(version)
    files |= {
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "25\n",
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "50\n",
        "sys/class/infiniband/mlx5_1/ports/1/state": "4: ACTIVE\n",
    }
    host = _below(tmp_path, files, shell)
    (quota,) = host.quotas
    assert (quota.path, quota.cpus) == ("/slurm/job_5", 1.5)
    assert (quota.periods, quota.throttled) == (400, 100)
    assert [(p.name, p.received_bytes, p.sent_bytes) for p in host.ports] == [
        ("mlx5_0/1", 100, 200)
    ]
    if version == 2:
        (limit,) = host.limits
        assert (limit.limit_bytes, limit.used_bytes, limit.oom_kills) == (2000, 1500, 3)


@pytest.mark.parametrize("shell", SHELLS)
def test_rdma_ports_without_counters(tmp_path: Path, shell: Sequence[str]) -> None:
    """Drivers without `process_mad` (EFA, bnxt_re, irdma) have the files, but no numbers."""
    counters = {
        "efa_0": ("N/A (no PMA)\n", "N/A (no PMA)\n"),
        "irdma0": ("", ""),
        "irdma1": ("25\n", ""),
        "mlx5_0": ("25\n", "50\n"),
    }
    files = {}
    for device, values in counters.items():
        folder = f"sys/class/infiniband/{device}/ports/1/counters"
        for name, value in zip(("port_rcv_data", "port_xmit_data"), values, strict=True):
            files[f"{folder}/{name}"] = value
    host = _below(tmp_path, files, shell)
    assert [one.name for one in host.ports] == ["mlx5_0/1"]


@pytest.mark.parametrize("shell", SHELLS)
def test_no_byte_counts_twice_where_interfaces_are_stacked(
    tmp_path: Path, shell: Sequence[str]
) -> None:
    stack: dict[str, tuple[str, ...]] = {
        "lo": (), "eno1": (), "eno2": (), "bond0": ("eno1", "eno2"), "bond0.100": ("bond0",),
        "br0": ("bond0.100", "vnet0"), "vnet0": (),
        "br1": ("vnet1",), "vnet1": (), "br1.7": ("br1",),
    }  # fmt: skip
    files = {"proc/net/dev": "Inter-|   Receive  |  Transmit\n face |bytes |bytes compressed\n"}
    for name, lower in stack.items():
        files["proc/net/dev"] += f"{name:>6}: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n"
        files[f"sys/class/net/{name}/mtu"] = "1500\n"
        files |= {f"sys/class/net/{name}/lower_{one}": "" for one in lower}
    host = _below(tmp_path, files, shell)
    assert [(one.name, one.received_bytes, one.sent_bytes) for one in host.interfaces] == [
        ("eno1", 100, 200),
        ("eno2", 100, 200),
        ("br1", 100, 200),  # of what it stands on, nothing is told
    ]


def _cgroups(version: int) -> dict[str, str]:
    job = "sys/fs/cgroup/slurm/job_5"
    if version == 2:
        return {
            "proc/self/cgroup": "0::/slurm/job_5/step_0\n",
            f"{job}/cpu.max": "150000 100000\n",
            f"{job}/cpu.stat": "usage_usec 9\nnr_periods 400\nnr_throttled 100\n"
            "throttled_usec 2500000\n",
            f"{job}/step_0/cpu.max": "max 100000\n",
            f"{job}/memory.max": "2000\n",
            f"{job}/memory.current": "1500\n",
            f"{job}/memory.events": "low 0\noom 3\noom_kill 3\n",
            f"{job}/step_0/memory.max": "max\n",
        }
    job = "sys/fs/cgroup/cpu/slurm/job_5"
    return {
        "proc/self/cgroup": "4:memory:/slurm/job_5/step_0\n3:cpu,cpuacct:/slurm/job_5/step_0\n",
        f"{job}/cpu.cfs_quota_us": "150000\n",
        f"{job}/cpu.cfs_period_us": "100000\n",
        f"{job}/cpu.stat": "nr_periods 400\nnr_throttled 100\nthrottled_time 2500000000\n",
        f"{job}/step_0/cpu.cfs_quota_us": "-1\n",
    }


def _below(folder: Path, files: Mapping[str, str], shell: Sequence[str]) -> HostVitals:
    """Read a machine whose /sys, own cgroup and, if given, interfaces are files below `folder`."""
    require(shell[0])
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    snippet = str(vitals_host.PROBE.snippet(JOB)).replace("/sys/", f"{folder}/sys/")
    snippet = snippet.replace("/proc/$i/cgroup", f"{folder}/proc/$i/cgroup")
    if "proc/net/dev" in files:
        snippet = snippet.replace("/proc/net/dev", f"{folder}/proc/net/dev")
    done = subprocess.run([*shell, "-c", snippet], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    (host,) = vitals_host.PROBE.parse(done.stdout)
    return host


def test_gpus_over_the_double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{DOUBLES}:{os.environ['PATH']}")
    monkeypatch.setenv("CLUSTERKIT_GPUS", str(DOUBLES / "gpus" / "sick8"))
    heard: list[NodeVitals] = []
    (found,) = ask_vitals(LocalTransport(), ("n1",), once=True, on_reply=heard.append)
    assert heard == [found]
    assert (found.problem, len(found.samples)) == ("", 2)
    last = found.samples[-1]
    assert [one.index for one in last.gpus] == list(range(8))
    assert (last.gpus[5].temperature_c, last.gpus[5].power_w) == (93.0, 71.2)
    assert [(s.index, s.why) for s in slowdowns(last.gpus)] == [(5, "hardware thermal slowdown")]
    assert last.gpu_problem == ""


def test_a_driver_that_does_not_answer_leaves_the_rest() -> None:
    outputs = {
        "vitals-host": Output(stdout=UNITS + READING),
        "vitals-nvidia": Output(stdout="", exit_code=124),
        "vitals-amd": Output(stdout="no AMD GPU\n", exit_code=77),
    }
    found = read_samples(outputs)
    assert not isinstance(found, Missing)
    assert found[0].gpu_problem == "vitals-nvidia gave no answer within 20 s"
    assert found[0].host.cpus == 4


def test_no_answer_about_the_host_is_no_sample() -> None:
    found = read_samples({"vitals-host": Output(stdout="?\n")})
    assert isinstance(found, Missing)
    assert "unparsed" in found.reason
    assert replace(sample(), gpus=(gpu(),)).gpus[0].busy_percent == 97.0
