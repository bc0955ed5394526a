"""`clusterkit preflight` on the practice cluster, as typed: each fault is named with its node.

Each is asked for by ssh and through srun while it lasts, some with others on other nodes.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.desk import ROOT, Desk
from tests.helpers.doc_blocks import blocks
from tests.helpers.lab_ask import await_no_job
from tests.helpers.lab_faults import (
    busy,
    clock_ahead,
    configured,
    drained,
    filtered,
    full_disk,
    full_shared_memory,
    gpus,
    hosts_file,
    interface,
    mounted,
    programs,
    rdma,
    resume,
    shaped,
    sshd_changed,
    sshd_hung,
    sshd_stopped,
    wait_for_state,
)
from tests.helpers.lab_jobs import await_true, is_soon
from tests.lab import Lab
from tests.lab.slurm import newer
from tests.unit.preflight.test_probe_rdma import device, port_files

pytestmark = pytest.mark.lab

NODES = ["n1", "n2", "n3"]
PATH = "/usr/bin:/bin"
CONFIG = """\
default_cluster: rack
clusters:
  lab: {{kind: slurm, partition: gpu, python: {python}, run_dir: runs}}
  rack:
    kind: ssh
    hosts: n[1-3]
    shared_filesystem: true
    python: {python}
    run_dir: runs
"""
VIAS = {"ssh": ("--cluster", "rack"), "srun": ("--cluster", "lab")}

Document = dict[str, Any]
Found = dict[str, tuple[str, list[str], str]]
"""Check -> verdict, nodes and summary."""
Context = AbstractContextManager[Any]


@pytest.fixture(autouse=True)
def _idle_again(lab: Lab) -> Iterator[None]:
    """Leave every node to the tests after this one."""
    yield
    wait_for_state(lab, "idle", *NODES)


@pytest.fixture
def desk(lab: Lab, tmp_path: Path) -> Desk:
    """Give a desk with the three nodes as a rack, reached by ssh, and as a part of Slurm."""
    return rack(lab, tmp_path)


def rack(lab: Lab, folder: Path) -> Desk:
    """Return a desk in `folder`."""
    (folder / "clusterkit.yaml").write_text(CONFIG.format(python=sys.executable))
    (folder / "runs").mkdir()
    return Desk(lab, folder)


def preflight(desk: Desk, *words: str) -> Document:
    """Return what `clusterkit preflight --json` says, and its exit code."""
    done = desk.clusterkit("preflight", "--json", *words, timeout_s=100)
    assert done.stdout, done.stderr
    assert "Traceback" not in done.stderr
    return {**json.loads(done.stdout), "code": done.returncode}


def faults(document: Document) -> Found:
    """Return what is neither pass nor skip: id -> verdict, nodes, summary."""
    return {
        f["id"]: (f["verdict"], f["nodes"], f["summary"])
        for f in document["findings"]
        if f["verdict"] not in {"pass", "skip"}
    }


def is_fit(document: Document) -> None:
    """Hold that every node is usable and nothing was found."""
    assert faults(document) == {}
    assert (document["usable"], document["exclude"]) == (NODES, [])
    assert document["code"] == 0


def names_unfit(document: Document, *unfit: str) -> None:
    """Hold that these nodes are unfit, and no other."""
    assert (document["code"], document["exclude"]) == (1, sorted(unfit))
    assert document["usable"] == [node for node in NODES if node not in unfit]


@pytest.mark.parametrize("via", VIAS)
def test_a_healthy_cluster_has_nothing_to_say(desk: Desk, via: str) -> None:
    """Not even where warnings and unknowns count; and the document is as the contract has it."""
    began = time.monotonic()
    document = preflight(desk, *VIAS[via], "--strict")
    took_s = time.monotonic() - began
    is_fit(document)
    assert list(document) == [
        *("schema", "nodes", "usable", "exclude", "findings", "counts", "seconds", "code")
    ]
    assert document["schema"] == 1
    assert document["nodes"] == NODES
    assert list(document["findings"][0]) == [
        *("id", "check", "verdict", "nodes", "summary", "evidence", "hint", "command")
    ]
    if via == "srun" and newer():
        (placed,) = (one for one in document["findings"] if one["id"] == "TOPO007")
        assert (placed["summary"], placed["nodes"]) == ("block b1", NODES)
    assert 0 < document["seconds"] < took_s
    assert sum(document["counts"].values()) == len(document["findings"])
    passed = {f["id"] for f in document["findings"] if f["verdict"] == "pass"}
    assert passed >= {"SSH001", "HOST001", "HOST002", "HOST010", "HOST014", "FS002"}
    assert ("SLURM001" in passed) is (via == "srun")
    assert "NET001" not in {f["id"] for f in document["findings"]}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, and what is to be said of it: id -> verdict and summary."""

    node: str = "n2"
    make: Callable[[Lab, Path], Context]
    found: Mapping[str, tuple[str, str]]
    words: tuple[str, ...] = ()
    beside: Found = field(default_factory=dict)
    """What is true of the practice cluster itself, through srun."""


@contextmanager
def port_down(lab: Lab, folder: Path) -> Iterator[None]:
    """Give all nodes an InfiniBand device, whose port is down on n3."""
    with ExitStack() as stack:
        for node in lab.nodes:
            state = {"state": "1: DOWN", "phys_state": "3: Disabled"} if node == "n3" else {}
            devices = folder / f"rdma-{node}"
            device(devices, "mlx5_0", {"hca_type": "MT4129", **port_files(**state)})
            stack.enter_context(rdma(lab, node, devices))
        yield


FAULTS = {
    "hosts-entry": Fault(
        make=lambda lab, tmp: hosts_file(lab, "n2", "10.77.0.3 n3", "10.77.0.99 n3", tmp),
        found={"HOST002": ("fail", "resolves n3 to 10.77.0.99, wrong")},
    ),
    "shared-memory": Fault(
        node="n3",
        make=lambda lab, _: full_shared_memory(lab, "n3"),
        found={"HOST010": ("fail", "/dev/shm is full")},
    ),
    "clock": Fault(
        make=lambda lab, tmp: clock_ahead(lab, "n2", 90, tmp),
        found={"HOST001": ("fail", "clock is 90 s ahead")},
    ),
    "not-shared": Fault(
        node="n1",
        make=lambda lab, tmp: mounted(
            lab, "n1", "-t", "tmpfs", "-o", "size=4g", "own", str(tmp / "runs")
        ),
        found={
            "FS002": ("fail", "{runs} is not shared: does not see the file that was written there"),
            "FS004": ("warn", "{runs} comes from another source"),
        },
    ),
    "gpu": Fault(
        make=lambda lab, tmp: gpus(lab, tmp, n1="healthy8", n2="sick8", n3="healthy8"),
        found={
            "GPU008": ("fail", "GPU 0: uncorrected ECC errors since the driver was loaded: 2"),
            "GPU009": ("fail", "GPU 3: a row remap is pending"),
            "GPU011": ("warn", "GPU 3: Xid 63 (row remap or page retirement recorded)"),
            "GPU013": ("fail", "GPU 5: hardware thermal slowdown"),
            "GPU014": ("fail", "GPU 5: 93 C, at its slowdown limit"),
            "GPU017": ("fail", "GPU 1: 1 of 18 NVLinks down (link 7)"),
        },
        beside={"SLURM002": ("warn", NODES, "Slurm counts 4 GPUs, the driver 8")},
    ),
    "no-gpu": Fault(
        node="n3",
        make=lambda lab, tmp: gpus(lab, tmp, n1="healthy8", n2="healthy8"),
        found={
            "GPU001": ("fail", "no NVIDIA GPU, 2 of 3 nodes have one"),
            "GPU002": ("fail", "no NVIDIA GPU, 2 of 3 nodes have one"),
            "TOPO001": ("fail", "no NVIDIA GPU, 2 of 3 nodes have one"),
        },
        beside={"SLURM002": ("warn", ["n1", "n2"], "Slurm counts 4 GPUs, the driver 8")},
    ),
    "full-disk": Fault(
        make=lambda lab, tmp: full_disk(lab, "n2", tmp / "runs"),
        found={
            "HOST011": ("fail", "/tmp is full"),
            "FS002": ("fail", "{runs} is not shared: does not see the file that was written there"),
            "FS004": ("warn", "{runs} comes from another source"),
            "FS005": ("fail", "{runs} is full"),
        },
    ),
    "port": Fault(
        node="n3",
        make=port_down,
        found={"IB002": ("fail", "mlx5_0/1 is down")},
        words=("--select", "IB"),  # how much memory may be locked is this machine's own
    ),
    "interface": Fault(
        make=lambda lab, _: interface(lab, "ib0", "n1", "n3"),
        found={"NCCL003": ("fail", "NCCL_SOCKET_IFNAME=ib0: no interface ib0")},
        words=("--env", "NCCL_SOCKET_IFNAME=ib0"),
    ),
}


AT_ONCE = (
    ("hosts-entry",),
    ("shared-memory", "clock", "not-shared"),
    ("gpu",),
    ("no-gpu", "interface"),
    ("full-disk",),
    ("port",),
)
"""Faults that last at the same time, on hosts of their own."""


@pytest.mark.parametrize("names", AT_ONCE, ids=" ".join)
def test_a_fault_is_named_with_its_node_and_nothing_else(
    desk: Desk, names: tuple[str, ...]
) -> None:
    made = [FAULTS[name] for name in names]
    runs = desk.folder / "runs"
    expected: Found = {}
    beside: Found = {}
    for fault in made:
        beside.update(fault.beside)
        for check, (verdict, summary) in fault.found.items():
            expected[check] = (verdict, [fault.node], summary.format(runs=runs))
    words = [word for fault in made for word in fault.words]
    with ExitStack() as stack:
        for fault in made:
            stack.enter_context(fault.make(desk.lab, desk.folder))
        by_ssh = preflight(desk, *VIAS["ssh"], *words)
        through_srun = preflight(desk, *VIAS["srun"], *words)
    assert faults(by_ssh) == expected
    assert faults(through_srun) == {**expected, **beside}
    names_unfit(by_ssh, *(fault.node for fault in made))
    names_unfit(through_srun, *(fault.node for fault in made))
    assert list(runs.iterdir()) == []  # the file that all nodes looked for is gone


def test_a_node_without_what_runs_containers_is_named_through_srun(desk: Desk) -> None:
    config = desk.folder / "clusterkit.yaml"
    runtime = "kind: slurm, container_runtime: apptainer,"
    config.write_text(config.read_text().replace("kind: slurm,", runtime))
    tools = desk.folder / "tools"
    tools.mkdir()
    (tools / "apptainer").write_text("#!/bin/sh\necho apptainer version 1.3.4\n")
    (tools / "apptainer").chmod(0o755)
    with programs(desk.lab, tools, "n1", "n3"):
        document = preflight(desk, *VIAS["srun"], "--select", "ENV")
    assert faults(document) == {"ENV001": ("fail", ["n2"], "apptainer is not installed")}
    names_unfit(document, "n2")


@pytest.mark.parametrize("via", VIAS)
def test_a_firewall_before_the_rendezvous_is_named(desk: Desk, via: str) -> None:
    """20000 is the first port that a job is given."""
    reject = f"ip saddr {desk.lab.layout.address('n3')} tcp dport 20000 reject with tcp reset"
    with filtered(desk.lab, "n1", reject):
        document = preflight(desk, *VIAS[via], "--network", "--select", "NET001")
    assert {check: found[:2] for check, found in faults(document).items()} == {
        "NET001": ("fail", ["n3"])
    }
    names_unfit(document, "n3")


@pytest.mark.parametrize("via", VIAS)
def test_a_slow_link_is_named_with_both_of_its_ends(desk: Desk, via: str) -> None:
    with shaped(desk.lab, "100mbit", slow={("n1", "n3"): "20mbit"}):
        document = preflight(desk, *VIAS[via], "--network", "--select", "NET003")
    ((check, (verdict, nodes, summary)),) = faults(document).items()
    assert (check, verdict, sorted(nodes)) == ("NET003", "fail", ["n1", "n3"])
    assert "between n1 and n3" in summary
    assert (document["code"], document["usable"]) == (1, ["n2"])


SSHD: dict[str, tuple[Callable[[Lab, Path], Context], str]] = {
    "stopped": (lambda lab, _: sshd_stopped(lab, "n2"), "connection refused"),
    "hung": (lambda lab, _: sshd_hung(lab, "n2"), "no answer before the timeout"),
    "host-key": (lambda lab, tmp: sshd_changed(lab, "n2", tmp, key=True), "its host key has chang"),
    "login": (
        lambda lab, tmp: sshd_changed(lab, "n2", tmp, "AuthorizedKeysFile none"),
        "login refused",
    ),
}


@pytest.mark.parametrize("name", SSHD)
def test_a_node_that_ssh_does_not_reach_is_named_with_the_cause(desk: Desk, name: str) -> None:
    """The others are judged."""
    make, summary = SSHD[name]
    with make(desk.lab, desk.folder):
        began = time.monotonic()
        document = preflight(desk, "--timeout", "2")
        seconds = time.monotonic() - began
    found = faults(document)
    assert list(found) == ["SSH001"]
    verdict, nodes, said = found["SSH001"]
    assert (verdict, nodes) == ("fail", ["n2"])
    assert said.startswith(summary)
    names_unfit(document, "n2")
    assert is_soon(desk.lab, seconds)
    passed = [f for f in document["findings"] if f["id"] == "HOST014"]
    assert [f["nodes"] for f in passed] == [["n1", "n3"]]


def test_srun_needs_no_sshd(desk: Desk) -> None:
    with sshd_stopped(desk.lab, "n2"):
        is_fit(preflight(desk, *VIAS["srun"]))


def test_a_noisy_login_changes_nothing(desk: Desk, tmp_path: Path) -> None:
    """A banner before the login, a profile that prints, on both streams."""
    (tmp_path / "banner").write_text("AUTHORISED USE ONLY\n" * 50)
    noise = "echo welcome; printf 'no end of line'; echo oops >&2; eval \"$SSH_ORIGINAL_COMMAND\""
    lines = (f"Banner {tmp_path / 'banner'}", f"ForceCommand {noise}")
    with sshd_changed(desk.lab, "n2", tmp_path, *lines):
        is_fit(preflight(desk))


def reasons(desk: Desk) -> dict[str, str]:
    """Return why nodes are out of service, by the word of Slurm."""
    said = desk.lab.run("head", ["sinfo", "--noheader", "-R", "-o", "%n|%E"], check=True).stdout
    return dict(line.split("|") for line in said.splitlines())


def test_slurm_drains_a_node_that_finds_a_fault_of_its_own(desk: Desk, tmp_path: Path) -> None:
    """By the program of the docs; a reason that somebody else gave stays."""
    (program,) = blocks(ROOT / "docs/how-to/preflight.md", "sh")
    ours = shlex.join([sys.executable, "-m", "clusterkit", "preflight"])
    check = tmp_path / "healthcheck"
    check.write_text(program.replace("clusterkit preflight", ours))
    check.chmod(0o755)
    run = functools.partial(desk.lab.run, argv=[str(check)], env=desk.environment(), check=True)
    kinds = {"n1": "healthy8", "n2": "sick8", "n3": "sick8"}
    with gpus(desk.lab, tmp_path, **kinds), drained(desk.lab, "n3", "fan 3 = dead"):
        for node in NODES:
            run(node)
        found = reasons(desk)
        resume(desk.lab, "n2")
    assert found.keys() == {"n2", "n3"}
    assert found["n2"].startswith("clusterkit: GPU")
    assert found["n3"] == "fan 3 = dead"


def test_a_prolog_keeps_a_job_from_a_node_that_finds_a_fault_of_its_own(
    desk: Desk, tmp_path: Path
) -> None:
    """By the same program, as the docs say; another node runs the job."""
    (program,) = blocks(ROOT / "docs/how-to/preflight.md", "sh")
    ours = shlex.join([sys.executable, "-m", "clusterkit", "preflight"])
    prolog = tmp_path / "prolog"
    text = program.replace("clusterkit preflight", f"cd {ROOT} && {ours}")
    text = text.replace("--for healthcheck", "--for prolog").replace("exec scontrol", "scontrol")
    prolog.write_text(f"{text}exit 1\n")
    prolog.chmod(0o755)
    ran = desk.folder / "ran"
    kinds = {"n1": "healthy8", "n2": "sick8", "n3": "healthy8"}
    also = f"Prolog={prolog}\nSchedulerParameters=nohold_on_prolog_fail,"
    with gpus(desk.lab, tmp_path, **kinds), configured(desk.lab, "SchedulerParameters=", also):
        wrap = f"--wrap=echo $SLURMD_NODENAME >>{ran}"
        words = ["--wait", "--exclude=n1", "--output=/dev/null", wrap]
        desk.lab.run("head", ["sbatch", *words], check=True)
        found = reasons(desk)
        resume(desk.lab, "n2")
    assert found.keys() == {"n2"}
    assert found["n2"].startswith("clusterkit: GPU")
    assert ran.read_text() == "n3\n"


def test_a_drained_node_is_named_with_its_reason(desk: Desk) -> None:
    """However it is asked, as long as Slurm is; and its reason is not to be replaced."""
    why = ("fail", ["n2"], "drained: fan 3 = dead")
    with drained(desk.lab, "n2", "fan 3 = dead"):
        free = desk.clusterkit("nodes", "free", *VIAS["srun"]).stdout.splitlines()
        through_srun = preflight(desk, *VIAS["srun"])
        by_ssh = preflight(desk, *VIAS["srun"], "--via", "ssh")
        again = desk.clusterkit("preflight", *VIAS["srun"], "--drain-command")
    assert [line.split()[:5] for line in free[1:]] == [
        ["n[1,3]", "idle", "8", "of", "8"],
        ["n2", "drained", "0", "of", "4"],
    ]
    assert free[2].endswith("  fan 3 = dead")
    assert faults(by_ssh) == {"SLURM001": why}
    assert faults(through_srun) == {
        "SLURM001": why,
        "SSH001": ("fail", ["n2"], "srun did not start a task there"),
    }
    names_unfit(by_ssh, "n2")
    names_unfit(through_srun, "n2")
    assert (again.returncode, again.stdout) == (1, "")
    assert "n2 is out of service already" in again.stderr


def test_a_busy_node_is_not_unfit(desk: Desk) -> None:
    """Through srun it cannot be asked, and that is not its fault; by ssh it can."""
    with busy(desk.lab, "n2"):
        free = json.loads(desk.clusterkit("nodes", "free", *VIAS["srun"], "--json").stdout)["nodes"]
        through_srun = preflight(desk, *VIAS["srun"])
        strictly = desk.clusterkit("preflight", *VIAS["srun"], "--strict", "--drain-command")
        by_ssh = preflight(desk, *VIAS["srun"], "--via", "ssh")
    assert faults(through_srun) == {
        "SSH001": ("unknown", ["n2"], "not asked: it runs other jobs now")
    }
    assert [one["cpus_free"] == one["cpus"] for one in free] == [True, False, True]
    assert (through_srun["code"], through_srun["exclude"]) == (0, [])
    assert through_srun["usable"] == ["n1", "n3"]
    assert (strictly.returncode, strictly.stdout) == (1, "")
    is_fit(by_ssh)


@pytest.mark.parametrize("via", VIAS)
def test_an_unknown_name_is_named_and_the_others_are_judged(desk: Desk, via: str) -> None:
    """Also where no node is left: the report is shown, and no hostfile is written."""
    document = preflight(desk, *VIAS[via], "--hosts", "n[1,9]")
    verdict, nodes, _ = faults(document)["SSH001"]
    assert (verdict, nodes) == ("fail", ["n9"])
    assert list(faults(document)) == ["SSH001"]
    assert (document["code"], document["usable"]) == (1, ["n1"])
    words = (*VIAS[via], "--hosts", "n9", "--write-hostfile", "left")
    done = desk.clusterkit("preflight", *words)
    assert done.returncode == 1
    assert "SSH001 ssh-reachable  n9" in done.stdout
    assert ("hint: correct the name" in done.stdout) is (via == "srun")
    assert "no node is usable" in done.stderr
    assert not (desk.folder / "left").exists()


def test_the_lines_that_drain_are_ready_to_be_run(desk: Desk) -> None:
    """Nothing is drained before somebody runs them."""
    lab = desk.lab
    with full_shared_memory(lab, "n3"):
        done = desk.clusterkit("preflight", *VIAS["srun"], "--drain-command")
    assert done.returncode == 1
    is_fit(preflight(desk, *VIAS["srun"]))
    lab.run("head", ["sh", "-e"], input=done.stdout, check=True)
    try:
        document = preflight(desk, *VIAS["srun"])
    finally:
        resume(lab, "n3")
    reason = "drained: clusterkit: HOST010 /dev/shm is full"
    assert faults(document)["SLURM001"] == ("fail", ["n3"], reason)


@pytest.mark.parametrize(
    ("via", "stopped"), [*((via, False) for via in VIAS), ("srun", True)], ids=[*VIAS, "stopped"]
)
def test_an_interrupt_leaves_nothing_behind(desk: Desk, via: str, stopped: bool) -> None:
    """Neither on the nodes nor in the queue, where a probe hangs; also where srun itself does."""
    lab = desk.lab
    argv = [sys.executable, "-m", "clusterkit", "preflight", *VIAS[via], "--save", "kept"]
    with gpus(lab, desk.folder, n2="healthy8"):
        (desk.folder / "n2" / "gpus" / "exit").write_text("hang")
        client = lab.popen("head", argv, cwd=desk.folder, env=desk.environment())
        while not lab.processes("n2", "sleep 3600"):
            assert client.poll() is None, client.communicate()
            time.sleep(0.05)
        for process in lab.processes("head", "^srun ") if stopped else ():
            os.kill(process.pid, signal.SIGSTOP)
        for process in lab.processes("head", "^[^ ]*python[^ ]* -m clusterkit preflight"):
            os.kill(process.pid, signal.SIGINT)
        began = time.monotonic()
        out, errors = client.communicate(timeout=120)
        assert is_soon(lab, time.monotonic() - began), "the probe that hangs is waited for"
        assert (client.returncode, out) == (130, "")
        assert "Traceback" not in errors
        # A probe may take longer; a script notices earlier that nobody listens.
        began, words = time.monotonic(), "sleep 3600|nvidia-smi|CLUSTERKIT_PROBES"
        await_true(lambda: not any(lab.processes(node, words) for node in NODES))
        assert is_soon(lab, time.monotonic() - began)
    await_no_job(lab, "running")
    assert list((desk.folder / "runs").iterdir()) == []
    assert not (desk.folder / "kept" / "manifest.json").exists()


@dataclass(frozen=True)
class Kept:
    """A bundle of three nodes: n1 is fit, the clock of n2 is 5 s ahead, /dev/shm of n3 is full."""

    folder: Path
    document: Document

    def replay(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Judge it as a colleague does: no configuration, no cluster, no ssh, no Slurm."""
        return elsewhere(self.folder.parent / "elsewhere", "--replay", str(self.folder), *words)


def elsewhere(
    folder: Path, *words: str, path: str = "/nowhere"
) -> subprocess.CompletedProcess[str]:
    """Run preflight outside of the practice cluster, without any program beside it."""
    return subprocess.run(
        [sys.executable, "-m", "clusterkit", "preflight", *words],
        cwd=folder,
        env={"PATH": path, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(scope="module")
def kept(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Give a bundle and what was said when it was collected, and moved since."""
    folder = tmp_path_factory.mktemp("kept")
    desk = rack(lab, folder)
    with full_shared_memory(lab, "n3"), clock_ahead(lab, "n2", 5, folder):
        document = preflight(desk, *VIAS["srun"], "--save", "bundle")
    (folder / "elsewhere").mkdir()
    return Kept((folder / "bundle").rename(folder / "sent"), document)


def test_a_replay_gives_the_same_findings_anywhere(kept: Kept) -> None:
    done = kept.replay("--json")
    assert {**json.loads(done.stdout), "code": done.returncode} == kept.document
    assert faults(kept.document) == {
        "HOST001": ("warn", ["n2"], "clock is 5 s ahead"),
        "HOST010": ("fail", ["n3"], "/dev/shm is full"),
    }


def test_a_report_is_folded_with_the_worst_last_and_says_what_to_type(kept: Kept) -> None:
    lines = kept.replay().stdout.splitlines()
    assert lines[0] == "warn     HOST001 host-clock  n2"
    worst = lines.index("fail     HOST010 host-shm  n3")
    assert worst > 0
    assert lines[-10:-5] == ["", "n1  pass", "n2  warn", "n3  fail", ""]
    assert re.fullmatch(r"findings: \d+ skip, \d+ pass, 1 warn, 1 fail; \d+\.\d s", lines[-5])
    assert re.fullmatch(r"skipped, \d+ of \d+: .+", lines[-4])
    assert lines[-3] == "no node has an NVIDIA driver: what GPUs need was not checked"
    assert lines[-2:] == ["2 of 3 nodes usable; leave out the others:", "  --exclude n3"]


CHOICES: dict[str, tuple[int, list[str]]] = {
    "": (1, ["n3"]),
    "--strict": (1, ["n2", "n3"]),
    "--ignore host-shm": (0, []),
    "--ignore HOST010 --strict": (1, ["n2"]),
    "--ignore HOST --strict": (0, []),
    "--select host010": (1, ["n3"]),
    "--select HOST001,SSH": (0, []),
    "--select HOST --ignore HOST010,HOST001 --strict": (0, []),
}


@pytest.mark.parametrize("words", CHOICES)
def test_what_is_chosen_decides(kept: Kept, words: str) -> None:
    done = kept.replay("--json", *words.split())
    document = json.loads(done.stdout)
    assert (done.returncode, document["exclude"]) == CHOICES[words]


MISTAKES = {
    "--select HOTS010": "did you mean 'host010'?",
    "--ignore gpu-ec": "did you mean 'gpu-ecc'?",
    "--select SSH,NOPE9": "`clusterkit explain checks` lists them",
    "--selct HOST": "did you mean --select",
    "--hosts n[1-3]": "leave it out, or leave --replay out",
    "--env NCCL_DEBUG=INFO": "leave it out, or leave --replay out",
    "--save again": "leave it out, or leave --replay out",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_exit_2_and_say_what_to_type(kept: Kept, words: str) -> None:
    done = kept.replay(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert MISTAKES[words] in done.stderr


NONSENSE = {
    "--hosts n1;reboot": "';' cannot stand in a host name",
    "--hosts n[1-": "the range 1- has no end",
    "--nodes 4": "hint: --nodes 1 to --nodes 3",
    "--via shs": "did you mean 'ssh'?",
    "--via local --hosts n[1-2]": "this machine only",
    "--timeout 0": "hint: --timeout 10",
    "--framework torchrn": "did you mean 'torchrun'?",
    "--cluster rak": "did you mean 'rack'?",
    "--hostfile nowhere": "cannot read nowhere: No such file",
}


@pytest.mark.parametrize("words", NONSENSE)
def test_what_cannot_be_meant_asks_no_node(tmp_path: Path, words: str) -> None:
    (tmp_path / "clusterkit.yaml").write_text(CONFIG.format(python=sys.executable))
    done = elsewhere(tmp_path, *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert NONSENSE[words] in done.stderr


def test_this_machine_alone_is_no_proof_for_others(tmp_path: Path) -> None:
    """`--via local` says nothing of the nodes of a cluster."""
    (tmp_path / "clusterkit.yaml").write_text(CONFIG.format(python=sys.executable))
    done = elsewhere(
        tmp_path, "--json", "--via", "local", "--select", "SSH,HOST006,SLURM", path=PATH
    )
    assert json.loads(done.stdout)["nodes"] == ["localhost"]
    assert {f["verdict"] for f in json.loads(done.stdout)["findings"]} <= {"pass", "skip"}


def test_a_folder_that_holds_something_is_refused_before_nodes_are_asked(desk: Desk) -> None:
    (desk.folder / "full").mkdir()
    (desk.folder / "full" / "thesis").touch()
    with sshd_hung(desk.lab, "n2"):
        # n2 would be waited for for longer than `clusterkit` has here.
        done = desk.clusterkit("preflight", "--save", "full", "--timeout", "600", timeout_s=120)
    assert done.returncode == 2
    assert "full is not empty" in done.stderr


def test_usable_nodes_as_a_hostfile(kept: Kept, tmp_path: Path) -> None:
    file = tmp_path / "usable"
    done = kept.replay("--strict", "--write-hostfile", str(file))
    assert done.returncode == 1
    assert file.read_text() == "n1\n"
    kept.replay("--write-hostfile", str(file))
    assert file.read_text() == "n1\nn2\n"


def test_drain_commands_of_a_bundle(kept: Kept) -> None:
    assert kept.replay("--drain-command").stdout == (
        "scontrol update NodeName=n3 State=DRAIN 'Reason=clusterkit: HOST010 /dev/shm is full'\n"
    )
