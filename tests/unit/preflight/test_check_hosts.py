"""Checks of reachability, hosts, folders and containers, judged on what probes print."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterkit.preflight.checks.base import Check, Evidence
from clusterkit.transport.probe import Output, PreflightJob, Reach, ReachProblem
from tests.helpers.evidence import evidence
from tests.helpers.probe_run import named, rulings, verdicts
from tests.unit.preflight.test_probe_host import DISKS, FOLDERS, LIMITS, NAMES, PYTHON, SYSTEM


def _reached(**nodes: Reach) -> Evidence:
    return evidence({name: {} for name in nodes}, reach=nodes)


def _each(probe: str, *texts: str | Output, job: PreflightJob | None = None) -> Evidence:
    """Return evidence of nodes n1, n2, ... that printed these texts."""
    hosts = tuple(f"n{i}" for i in range(1, len(texts) + 1))
    nodes = {host: {probe: text} for host, text in zip(hosts, texts, strict=True)}
    return evidence(nodes, job=job or PreflightJob(hosts=hosts))


def _ssh(**values: object) -> Reach:
    return Reach(via="ssh", **values)


@pytest.mark.parametrize("problem", [p for p in ReachProblem if p is not ReachProblem.DEFERRED])
def test_every_way_not_to_reach_a_node_is_told_apart(problem: ReachProblem) -> None:
    """Each with what it is, what to do, and a command that names the node."""
    found = rulings(
        named("ssh-reachable"), _reached(n1=_ssh(), n2=_ssh(problem=problem, detail="as ssh says"))
    )
    assert found["n1"].verdict == "pass"
    bad = found["n2"]
    assert bad.verdict == ("unknown" if problem == "busy" else "fail")
    assert "n2" in bad.command
    assert bad.evidence == "as ssh says"
    said = {
        rulings(named("ssh-reachable"), _reached(n=_ssh(problem=other)))["n"].summary
        for other in ReachProblem
    }
    assert len(said) == len(ReachProblem)


def test_a_node_that_is_powered_down_is_checked_later() -> None:
    down = _ssh(problem=ReachProblem.DEFERRED, detail="powered down")
    bad = rulings(named("ssh-reachable"), _reached(n1=down))["n1"]
    assert (bad.verdict, bad.summary) == ("skip", "powered down: checked when it starts")


def test_a_changed_host_key_is_never_waved_through() -> None:
    """The next step forgets the old key, after somebody was asked."""
    changed = _ssh(problem=ReachProblem.HOST_KEY_CHANGED)
    bad = rulings(named("ssh-reachable"), _reached(n1=changed))["n1"]
    assert bad.verdict == "fail"
    assert bad.command == "ssh-keygen -R n1"
    unknown = _ssh(problem=ReachProblem.HOST_KEY_UNKNOWN)
    bad = rulings(named("ssh-reachable"), _reached(n1=unknown))["n1"]
    assert "ssh-keyscan n1" in bad.command
    assert "known_hosts" in bad.hint


@pytest.mark.parametrize(
    ("latencies_ms", "expected"),
    [
        ((1, 1, 1), "pass pass pass"),
        ((0.1, 0.1, 1.9), "pass pass pass"),  # too quick for a factor to mean anything
        ((1, 1, 11), "pass pass warn"),
        ((60, 60, 60), "warn warn warn"),
    ],
)
def test_slow_nodes_are_warned_of(latencies_ms: tuple[float, ...], expected: str) -> None:
    """Above 50 ms, or ten times the median."""
    nodes = {f"n{i}": _ssh(latency_s=ms / 1000) for i, ms in enumerate(latencies_ms)}
    assert " ".join(verdicts(named("ssh-latency"), _reached(**nodes)).values()) == expected
    assert verdicts(named("ssh-latency"), _reached(n=Reach(via="srun"))) == {"n": "skip"}
    assert verdicts(named("ssh-latency"), _reached(n=_ssh())) == {"n": "unknown"}


def test_probes_that_had_not_ended_are_named() -> None:
    """Those that never began, too: another node shows that they were asked."""
    done, open_ = Output(stdout="x"), Output(stdout="", exit_code=None)
    found = rulings(
        named("ssh-complete"),
        evidence(
            {"n1": {"a": done, "b": done, "c": done}, "n2": {"a": done, "b": open_}},
            reach={"n2": _ssh(complete=False, seconds=12.3)},
        ),
    )
    assert found["n1"].verdict == "pass"
    assert found["n2"].verdict == "unknown"
    assert found["n2"].summary == "out of time: b, c"


@pytest.mark.parametrize(
    ("text", "verdict", "words"),
    [
        ("code=0\npeer=n2\nsaid=\nend\n", "pass", "logs in"),
        ("code=255\npeer=n2\nsaid=Host key verification failed.\nend\n", "fail", "host key of n2"),
        ("code=255\npeer=n2\nsaid=Permission denied (publickey).\nend\n", "fail", "let in"),
        ("code=255\npeer=n2\nsaid=ssh: connect to host n2 port 22: Connection timed out\nend\n",
         "fail", "no answer from n2"),
        ("code=255\npeer=n2\nsaid=ssh: connect to host n2 port 22: Connection refused\nend\n",
         "fail", "refused by n2"),
        ("code=1\npeer=n2\nsaid=?\nend\n", "fail", "cannot log in to n2"),
    ],
)  # fmt: skip
def test_logins_between_nodes(text: str, verdict: str, words: str) -> None:
    """What ssh says tells the causes apart."""
    job = PreflightJob(hosts=("n1", "n2"), peer_ssh=True)
    found = rulings(named("ssh-peers"), evidence({"n1": {"ssh-peer": text}}, job=job))
    assert (str(found["n1"].verdict), words in found["n1"].summary) == (verdict, True)


def test_clocks_are_compared_with_each_other() -> None:
    """From three nodes on a wrong clock of the client fails nobody."""

    def skews(*values: float) -> str:
        nodes = {f"n{i}": _ssh(clock_skew_s=value) for i, value in enumerate(values)}
        return " ".join(verdicts(named("host-clock"), _reached(**nodes)).values())

    assert skews(0.1, -0.2, 0.9) == "pass pass pass"
    assert skews(0, 0.1, 2) == "pass pass warn"
    assert skews(0, 0.1, -31) == "pass pass fail"
    assert skews(120, 120.1, 120.2) == "pass pass pass warn"
    assert skews(0, 40) == "pass fail"
    assert verdicts(named("host-clock"), _reached(n=_ssh())) == {"n": "unknown"}
    assert verdicts(named("host-clock"), _reached(n=Reach())) == {"n": "skip"}


def _names(me: str, local: str, *hosts: str, own: str = "", reverse: str = "") -> str:
    own = own or local
    lines = [f"name {me}", f"own {own}", f"reverse {own} {reverse or me}"]
    lines += [f"local {local} 127.0.0.1", *(f"host {host}" for host in hosts)]
    return "\n".join([*lines, "end\n"])


_RIGHT = ("n1 10.0.0.1", "n2 10.0.0.2", "n3 10.0.0.3")


def _three(second: str) -> Evidence:
    return _each(
        "host-names",
        _names("n1", "10.0.0.1", *_RIGHT),
        second,
        _names("n3", "10.0.0.3", *_RIGHT),
    )


@pytest.mark.parametrize(
    ("hosts", "verdict", "words"),
    [
        (_RIGHT, "pass", ""),
        (("n1 10.0.0.9", *_RIGHT[1:]), "fail", "n1 to 10.0.0.9"),
        (("n1 127.0.1.1", *_RIGHT[1:]), "fail", "n1 to 127.0.1.1"),
        (("n1", *_RIGHT[1:]), "fail", "cannot resolve n1"),
        ((*_RIGHT[:2], "n3"), "warn", "cannot resolve n3"),
        ((*_RIGHT[:2], "n3 10.0.0.1"), "fail", "n3 to 10.0.0.1"),
    ],
)
def test_a_node_that_resolves_names_wrongly_is_named(
    hosts: tuple[str, ...], verdict: str, words: str
) -> None:
    """The head counts most; the others are not blamed."""
    found = rulings(named("host-names"), _three(_names("n2", "10.0.0.2", *hosts)))
    assert [str(found[n].verdict) for n in ("n1", "n3")] == ["pass", "pass"]
    assert (str(found["n2"].verdict), words in found["n2"].summary) == (verdict, True)


def test_two_nodes_are_enough_to_find_a_wrong_name() -> None:
    """No vote is needed where the named node tells its own addresses."""
    texts = (_names("n1", "10.0.0.1", *_RIGHT[:2]), _names("n2", "10.0.0.2", "n1 10.0.0.7", "n2"))
    assert verdicts(named("host-names"), _each("host-names", *texts)) == {
        "n1": "pass",
        "n2": "fail",
    }
    alone = evidence(
        {"n1": {"host-names": texts[0]}, "n2": {}},
        reach={"n2": _ssh(problem=ReachProblem.TIMEOUT)},
    )
    assert verdicts(named("host-names"), alone) == {"n1": "pass"}


def test_an_address_that_is_translated_for_all_is_a_warning() -> None:
    """It may be right; nobody can tell from here."""
    hosts = ("n1 192.0.2.1", "n2 192.0.2.2", "n3 192.0.2.3")
    texts = [_names(f"n{i}", f"10.0.0.{i}", *hosts, own=f"10.0.0.{i}") for i in (1, 2, 3)]
    found = verdicts(named("host-names"), _each("host-names", *texts))
    assert set(found.values()) == {"warn"}


@pytest.mark.parametrize(
    ("text", "verdict", "words"),
    [
        (NAMES, "pass", ""),
        (_names("n1", "10.0.0.1", own="127.0.1.1"), "fail", "127.0.1.1"),
        (_names("n1", "10.0.0.1", own="10.9.9.9"), "fail", "does not have"),
        (_names("n1", "10.0.0.1", reverse="old-name"), "warn", "another name"),
        ("name n1\nown\nlocal 10.0.0.1\nend\n", "fail", "does not resolve"),
    ],
)
def test_a_nodes_own_name(text: str, verdict: str, words: str) -> None:
    """The trap of 127.0.1.1, a stale address, and the way back."""
    job = PreflightJob(hosts=("n1", "n2"))
    found = rulings(named("host-own-name"), _each("host-names", text, job=job))["n1"]
    assert (str(found.verdict), words in found.summary) == (verdict, True)
    alone = PreflightJob(hosts=("n1",))
    assert verdicts(named("host-own-name"), _each("host-names", text, job=alone)) == {None: "skip"}


@pytest.mark.parametrize(
    ("check", "old", "new"),
    [
        (named("host-os"), "kernel=6.1.0-18-amd64", "kernel=5.10.0"),
        (named("host-cpus"), "cpus=64", "cpus=32"),
        (named("host-hugepages"), "thp=madvise", "thp=always"),
        (named("host-memory"), "MemTotal=527987000", "MemTotal=495000000"),
        (named("host-memory"), "MemAvailable=500000000", "MemAvailable=9000000"),
        (named("host-memory"), "Hugetlb=2097152", "Hugetlb=400000000"),
    ],
)
def test_an_odd_node_is_warned_of(check: Check, old: str, new: str) -> None:
    """By majority, with no configuration kept by hand."""
    found = verdicts(check, _each("host-system", SYSTEM, SYSTEM.replace(old, new), SYSTEM))
    assert found == {"n1": "pass", "n2": "warn", "n3": "pass"}


@pytest.mark.parametrize(
    ("governors", "driver", "verdict"),
    [
        ("performance", "acpi-cpufreq", "pass"),
        ("powersave", "acpi-cpufreq", "warn"),
        ("powersave", "intel_pstate", "pass"),
        ("performance powersave", "intel_pstate", "warn"),
        ("", "", "skip"),
    ],
)
def test_governors(governors: str, driver: str, verdict: str) -> None:
    """`powersave` means two things; a virtual machine has none."""
    text = SYSTEM.replace("performance powersave", governors).replace("acpi-cpufreq", driver)
    assert verdicts(named("host-governor"), _each("host-system", text)) == {"n1": verdict}


@pytest.mark.parametrize(
    ("locked", "rdma", "verdict"),
    [
        ("unlimited           unlimited", "mlx5_0", "pass"),
        ("8388608             8388608  ", "mlx5_0", "fail"),
        ("1073741824          unlimited", "mlx5_0", "warn"),
        ("8388608             8388608  ", "", "skip"),
    ],
)
def test_locked_memory_counts_where_there_is_rdma(locked: str, rdma: str, verdict: str) -> None:
    """The soft limit is what the job gets."""
    limits = LIMITS.replace("unlimited            unlimited            bytes", f"{locked}  bytes")
    system = SYSTEM.replace("mlx5_0 mlx5_1", rdma)
    found = evidence({"n1": {"host-limits": limits, "host-system": system}})
    assert verdicts(named("host-memlock"), found) == {"n1": verdict}


@pytest.mark.parametrize(
    ("files", "hosts", "slots", "verdict"),
    [
        ("1024  ", ("n1", "n2"), None, "warn"),
        ("1024  ", ("n1",), 8, "pass"),
        ("256   ", ("n1",), None, "fail"),
        ("20000 ", ("n1", "n2"), 4, "pass"),
        ("20000 ", ("n1", "n2"), 8, "warn"),
        ("unlimited", ("n1", "n2"), 8, "pass"),
    ],
)
def test_open_files(files: str, hosts: tuple[str, ...], slots: int | None, verdict: str) -> None:
    """4,096 for each rank in a job of several nodes."""
    job = PreflightJob(hosts=hosts, gpus_per_node=slots)
    text = LIMITS.replace("1024                 ", files + "                ")
    assert verdicts(named("host-nofile"), _each("host-limits", text, job=job)) == {"n1": verdict}


def _df(size_kib: int, free_kib: int, *, mount: str, inodes: int = 9999) -> str:
    used = size_kib - free_kib
    return (
        f"kib=dev {size_kib} {used} {free_kib} {100 * used // size_kib}% {mount}\n"
        f"inodes=dev 100000 {100000 - inodes} {inodes} 1% {mount}\n"
    )


_GIB = 1 << 20


@pytest.mark.parametrize(
    ("shm", "verdict", "words"),
    [
        (_df(16 * _GIB, 16 * _GIB, mount="/dev/shm"), "pass", ""),
        (_df(16 * _GIB, 0, mount="/dev/shm"), "fail", "full"),
        (_df(16 * _GIB, 9 * _GIB, mount="/dev/shm", inodes=0), "fail", "full"),
        (_df(_GIB // 16, _GIB // 16, mount="/dev/shm"), "fail", "too small"),
        (_df(_GIB // 2, _GIB // 2, mount="/dev/shm"), "warn", "small"),
        (_df(16 * _GIB, _GIB, mount="/dev/shm"), "warn", "nearly full"),
        (_df(16 * _GIB, 9 * _GIB, mount="/"), "warn", "not in memory"),
        ("kib=\ninodes=\n", "fail", "no /dev/shm"),
    ],
)
def test_shared_memory(shm: str, verdict: str, words: str) -> None:
    """Docker's 64 MiB is too small, and so is what leftovers fill."""
    text = shm + _df(100 * _GIB, 50 * _GIB, mount="/") + "end\n"
    found = rulings(named("host-shm"), _each("host-disks", text))["n1"]
    assert (str(found.verdict), words in found.summary) == (verdict, True)


@pytest.mark.parametrize(
    ("tmp", "verdict", "words"),
    [
        (_df(100 * _GIB, 50 * _GIB, mount="/"), "pass", ""),
        (_df(100 * _GIB, 1000, mount="/"), "fail", "full"),
        (_df(100 * _GIB, 50 * _GIB, mount="/", inodes=10), "fail", "no inodes"),
        (_df(100 * _GIB, 50 * _GIB, mount="/", inodes=4000), "warn", "few inodes"),
        (_df(100 * _GIB, 4 * _GIB, mount="/"), "warn", "nearly full"),
        ("kib=\ninodes=\n", "fail", "no /tmp"),
    ],
)
def test_temporary_folder(tmp: str, verdict: str, words: str) -> None:
    """Room and inodes."""
    text = _df(16 * _GIB, 16 * _GIB, mount="/dev/shm") + tmp + "end\n"
    found = rulings(named("host-tmp"), _each("host-disks", text))["n1"]
    assert (str(found.verdict), words in found.summary) == (verdict, True)
    full = rulings(named("host-tmp"), _each("host-disks", DISKS))["n1"]
    assert full.verdict == "fail"


def test_an_interpreter_that_differs_is_named() -> None:
    """Absent on one node, another version on one, a crash on one."""
    crash = Output(stdout="", stderr="no libpython", exit_code=127)
    old = PYTHON.replace("version=3.11.7", "version=3.9.2")
    found = verdicts(
        named("host-python"),
        _each("job-python", PYTHON, PYTHON, PYTHON, "absent=1\nend\n", old, crash),
    )
    assert found == {
        "n1": "pass", "n2": "pass", "n3": "pass", "n4": "fail", "n5": "fail", "n6": "unknown",
    }  # fmt: skip


@pytest.mark.parametrize(("python", "verdict"), [("python3", "warn"), ("/opt/env/python", "fail")])
def test_an_interpreter_that_is_nowhere(python: str, verdict: str) -> None:
    """A bare name may come from modules; a path may not."""
    job = PreflightJob(hosts=("n1", "n2"), python=python)
    found = verdicts(named("host-python"), _each("job-python", *["absent=1\nend\n"] * 2, job=job))
    assert set(found.values()) == {verdict}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("built torch=2.5.1", "built torch=2.4.0", "2.4.0"),
        ("built cuda=12.4", "built cuda=11.8", "CUDA 11.8"),
        ("nvidia-nccl-cu12=2.21.5", "nvidia-nccl-cu12=2.18.1", "NCCL 2.18.1"),
        ("built cuda=12.4\n", "built cuda=\n", "without GPU support"),
    ],
)
def test_another_torch_fails(old: str, new: str, words: str) -> None:
    """Version, CUDA, NCCL, and a build for processors."""
    job = PreflightJob(hosts=("n1", "n2", "n3"), uses_gpus=True)
    found = rulings(
        named("host-torch"), _each("job-python", PYTHON, PYTHON.replace(old, new), PYTHON, job=job)
    )
    assert [str(r.verdict) for r in found.values()].count("pass") == 2
    assert found["n2"].verdict == "fail"
    assert words in found["n2"].summary


def test_torch_is_asked_for_only_by_what_needs_it() -> None:
    """No torch anywhere: fine for MPI, not for torchrun; on some nodes only: never."""
    none = PYTHON.replace("built torch=2.5.1+cu124\n", "").replace("package torch=2.5.1\n", "")
    mpi = PreflightJob(hosts=("n1", "n2"), framework="mpi")
    run = PreflightJob(hosts=("n1", "n2"), framework="torchrun")
    assert set(verdicts(named("host-torch"), _each("job-python", none, job=mpi)).values()) == {
        "skip"
    }
    assert set(verdicts(named("host-torch"), _each("job-python", none, job=run)).values()) == {
        "fail"
    }
    found = verdicts(named("host-torch"), _each("job-python", none, PYTHON, job=mpi))
    assert found == {"n1": "fail", "n2": "pass"}


def test_the_interpreter_that_asks_is_named_where_nodes_see_one_with_the_package() -> None:
    none = PYTHON.replace("built torch=2.5.1+cu124\n", "").replace("package torch=2.5.1\n", "")
    for here, said in (("/home/me/env/bin/python", "yours has it, "), (None, "install it there, ")):
        job = PreflightJob(hosts=("n1",), framework="torchrun", python_here=here)
        (result,) = rulings(named("host-torch"), _each("job-python", none, job=job)).values()
        assert result.hint.startswith(said)
        assert (f"`python: {here}` in the cluster" in result.hint) == (here is not None)


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ({"kind": "ssh"}, "fail"),
        ({"kind": "ssh", "python_is_set_up": True}, "warn"),
        ({"kind": "slurm"}, "warn"),  # it has the PATH of the shell that submits
        ({"kind": "ssh", "mpirun": ()}, None),
    ],
)
def test_mpirun_is_missed_where_it_starts_the_ranks(
    given: dict[str, Any], verdict: str | None
) -> None:
    job = PreflightJob(**{"hosts": ("n1", "n2"), "mpirun": ("mpirun", "mpiexec"), **given})
    there, nowhere = (PYTHON.replace("whole", f"which={path}\nwhole") for path in ("/b/mpirun", ""))
    found = verdicts(named("host-mpirun"), _each("job-python", there, nowhere, job=job))
    assert found == ({"n1": "pass", "n2": verdict} if verdict else {None: "skip"})


def test_packages_are_compared() -> None:
    """Another clusterkit is a warning; a framework that is missing fails."""
    odd = PYTHON.replace("clusterkit-launch=0.1.0", "clusterkit-launch=0.0.9")
    found = verdicts(named("host-packages"), _each("job-python", PYTHON, PYTHON, odd))
    assert found == {"n1": "pass", "n2": "pass", "n3": "warn"}
    job = PreflightJob(hosts=("n1",), framework="deepspeed")
    found = verdicts(named("host-packages"), _each("job-python", PYTHON, job=job))
    assert found == {"n1": "fail"}


def test_clusterkit_on_the_nodes_is_compared_with_the_one_that_asks() -> None:
    odd = PYTHON.replace("clusterkit-launch=0.1.0", "clusterkit-launch=0.0.9")
    none = PYTHON.replace("package clusterkit-launch=0.1.0\n", "")
    job = PreflightJob(hosts=("n1", "n2", "n3"), asked_by="0.1.0", python="/opt/env/bin/python")
    found = rulings(
        named("host-clusterkit"), _each("job-python", PYTHON, odd, none, "absent=1\nend\n", job=job)
    )
    assert {node: f"{ruling.verdict} {ruling.summary}" for node, ruling in found.items()} == {
        "n1": "pass clusterkit 0.1.0 on both sides",
        "n2": "warn clusterkit 0.0.9 is there, 0.1.0 is what asks",
        "n3": "skip not installed for the job's Python",
        "n4": "skip not installed for the job's Python",
    }
    assert found["n2"].command == (
        "/opt/env/bin/python -m pip install --no-index --no-deps "
        "clusterkit_launch-0.1.0-py3-none-any.whl"
    )
    foreign = PYTHON.replace("clusterkit-launch=0.1.0", "clusterkit=99")
    (ruling,) = rulings(named("host-clusterkit"), _each("job-python", foreign, job=job)).values()
    assert "another project named clusterkit (99) is installed over ours" in ruling.summary
    assert ruling.command == "/opt/env/bin/python -m pip uninstall clusterkit"
    unknown = _each("job-python", PYTHON, job=replace(job, asked_by=None))
    assert verdicts(named("host-clusterkit"), unknown) == {None: "skip"}


_PATHS = PreflightJob(
    hosts=("n1", "n2", "n3"), paths=("/home/run",), marker=".clusterkit-preflight-1"
)
_FOLDER = FOLDERS.split("folder=1")[0] + "end\n"


def _folders(second: str) -> Evidence:
    return _each("shared-folders", _FOLDER, second, _FOLDER, job=_PATHS)


_SOUND = _FOLDER.replace("soft,", "hard,")


@pytest.mark.parametrize(
    ("check", "old", "new", "verdict", "words"),
    [
        (named("fs-alive"), "", "", "pass", ""),
        (named("fs-alive"), "state=ok", "state=hung", "fail", "/home/run hangs"),
        (named("fs-alive"), "state=ok", "state=absent", "fail", "/home/run not found"),
        (named("fs-alive"), "state=ok", "state=denied", "fail", "may enter"),
        (named("fs-shared"), "", "", "pass", ""),
        (named("fs-shared"), "marker=.clusterkit-preflight-1\n", "", "fail", "does not see"),
        (
            named("fs-shared"), "marker=.clusterkit-preflight-1", "marker=", "fail",
            "another content",
        ),
        (named("fs-shared"), "inode=5308498", "inode=2", "warn", "not the folder that most"),
        (named("fs-shared"), "state=ok", "state=hung", "unknown", ""),
        (named("fs-writable"), "", "", "pass", ""),
        (named("fs-writable"), "writable=1", "writable=0", "fail", "may not be written"),
        (named("fs-writable"), "writable=1", "writable=0", "fail", ""),
        (named("fs-writable"), "state=ok", "state=hung", "unknown", ""),
        (named("fs-mounts"), "soft,", "hard,", "pass", ""),
        (named("fs-mounts"), "", "", "warn", "mounted soft"),
        (named("fs-mounts"), "soft,", "nolock,", "warn", "mounted nolock"),
        (named("fs-mounts"), "nas:/export/home 264212084", "old:/home 264212084", "warn", ""),
        (named("fs-space"), "", "", "pass", ""),
        (named("fs-space"), "264212084 24572936  81817976", "264212084 263712084 500000", "fail",
         "is full"),
        (named("fs-space"), "443418 16333798", "16777216 0", "fail", "no inodes"),
        (named("fs-space"), "264212084 24572936  81817976", "264212084 260000000 4212084",
         "warn", "nearly full"),
    ],
)  # fmt: skip
def test_folders(check: Check, old: str, new: str, verdict: str, words: str) -> None:
    """Each fault on one node of three, named there and not on the others."""
    assert old in _FOLDER
    found = rulings(check, _folders(_FOLDER.replace(old, new) if old else _FOLDER))
    assert (str(found["n2"].verdict), words in found["n2"].summary) == (verdict, True)
    if check is not named("fs-mounts"):
        assert [str(found[n].verdict) for n in ("n1", "n3")] == ["pass", "pass"]


def test_a_read_only_mount_is_called_that() -> None:
    """The options say why it cannot be written."""
    text = _FOLDER.replace("writable=1", "writable=0").replace("nfs4 rw,", "nfs4 ro,")
    assert "read-only" in rulings(named("fs-writable"), _folders(text))["n2"].summary


def test_numbers_of_fuse_file_systems_are_not_compared() -> None:
    """They are made up by each client."""
    texts = [
        _FOLDER.replace("type=nfs4", "type=fuse.gcsfuse").replace("5308498", str(i))
        for i in range(3)
    ]
    found = verdicts(named("fs-shared"), _each("shared-folders", *texts, job=_PATHS))
    assert set(found.values()) == {"pass"}


@pytest.mark.parametrize(("kind", "verdict"), [("nfs4", "pass"), ("ext4", "unknown")])
def test_without_a_marker_a_file_server_numbers_the_folder(kind: str, verdict: str) -> None:
    """The same number on a local disk shows nothing."""
    job = PreflightJob(hosts=("n1", "n2"), paths=_PATHS.paths)
    text = _FOLDER.replace("type=nfs4", f"type={kind}")
    found = verdicts(named("fs-shared"), _each("shared-folders", text, text, job=job))
    assert set(found.values()) == {verdict}
    here = PreflightJob(hosts=("n1", "n2"), paths=_PATHS.paths, kind="local")
    found = verdicts(named("fs-shared"), _each("shared-folders", text, text, job=here))
    assert found == {None: "skip"}


def test_an_environment_without_exec_fails() -> None:
    """Under noexec the libraries of torch do not load."""
    nodes = {"n1": {"job-python": PYTHON.replace("noexec=0", "noexec=1"), "shared-folders": _SOUND}}
    found = rulings(named("fs-mounts"), evidence(nodes, job=_PATHS))
    assert found["n1"].verdict == "fail"
    assert "noexec" in found["n1"].summary


_IMAGE = "version=28.2.2\ndigest=sha256:0123\ntoolkit=1.17.8\nend\n"


def _docker(image: str = "nvcr.io/nvidia/pytorch:25.01", runtime: str = "docker") -> PreflightJob:
    return PreflightJob(hosts=("n1", "n2", "n3"), container_runtime=runtime, image=image)


def _containers(second: str, job: PreflightJob) -> Evidence:
    texts = (_IMAGE, second, _IMAGE)
    nodes = {
        f"n{i}": {"container": text, "host-system": SYSTEM} for i, text in enumerate(texts, start=1)
    }
    return evidence(nodes, job=job)


@pytest.mark.parametrize(
    ("check", "text", "verdict"),
    [
        (named("env-runtime"), _IMAGE, "pass"),
        (named("env-runtime"), "absent=1\nend\n", "fail"),
        (named("env-runtime"), _IMAGE.replace("28.2.2", "20.10.5"), "warn"),
        (
            named("env-runtime"),
            "version=\nproblem=denied\ndigest=\ntoolkit=\nend\n",
            "fail",
        ),
        (named("env-toolkit"), _IMAGE, "pass"),
        (named("env-toolkit"), _IMAGE.replace("1.17.8", ""), "fail"),
        (named("env-toolkit"), "absent=1\nend\n", "unknown"),
        (named("env-image"), _IMAGE, "pass"),
        (named("env-image"), _IMAGE.replace("0123", "4567"), "fail"),
        (named("env-image"), _IMAGE.replace("sha256:0123", ""), "warn"),
        (named("env-image"), "version=\nproblem=x\ndigest=\ntoolkit=\nend\n", "unknown"),
        (named("env-image"), "absent=1\nend\n", "unknown"),
    ],
)
def test_containers(check: Check, text: str, verdict: str) -> None:
    """Runtime, toolkit and image, each wrong on one node of three."""
    found = verdicts(check, _containers(text, _docker()))
    assert found == {"n1": "pass", "n2": verdict, "n3": "pass"}


def test_an_image_file_that_is_not_there_fails() -> None:
    """Nobody brings a file; a registry's image is pulled."""
    job = _docker("/images/train.sif", "apptainer")
    found = verdicts(named("env-image"), _containers(_IMAGE.replace("sha256:0123", ""), job))
    assert found == {"n1": "pass", "n2": "fail", "n3": "pass"}


@pytest.mark.parametrize(
    ("here", "second", "verdicts_of"),
    [
        ("sha256:0123", "0123", ("pass", "pass")),
        ("sha256:0123", "4567", ("pass", "fail")),
        # Most nodes have another build than the one that is meant.
        ("sha256:4567", "4567", ("fail", "pass")),
        # Whoever asks may be the one that is behind.
        ("sha256:89ab", "0123", ("warn", "warn")),
        ("sha256:89ab", "4567", ("fail", "fail")),
    ],
)
def test_an_image_is_compared_with_that_of_the_machine_that_asks(
    here: str, second: str, verdicts_of: tuple[str, str]
) -> None:
    job = replace(_docker(), image_digest=here)
    found = rulings(named("env-image"), _containers(_IMAGE.replace("0123", second), job))
    assert {name: ruling.verdict for name, ruling in found.items()} == {
        "n1": verdicts_of[0],
        "n2": verdicts_of[1],
        "n3": verdicts_of[0],
    }
    for ruling in found.values():
        assert ("images distribute" in ruling.command) == (ruling.verdict != "pass")


def test_an_image_that_this_machine_has_is_brought_and_not_pulled() -> None:
    lacking = _IMAGE.replace("sha256:0123", "")
    found = rulings(named("env-image"), _containers(lacking, _docker()))
    assert found["n2"].command.startswith("docker pull ")
    job = replace(_docker(), image_digest="sha256:0123")
    found = rulings(named("env-image"), _containers(lacking, job))
    assert found["n2"].command.startswith("clusterkit images distribute ")


NO_JOB = PreflightJob(hosts=("n1",))


@pytest.mark.parametrize(
    "check",
    [
        named("fs-alive"), named("fs-shared"), named("fs-writable"), named("fs-space"),
        named("env-runtime"), named("env-toolkit"), named("env-image"), named("ssh-peers"),
    ],
)  # fmt: skip
def test_what_the_job_does_not_have_is_one_skip(check: Check) -> None:
    """No folder, no container, no login from node to node: no noise."""
    assert verdicts(check, evidence({"n1": {}}, job=NO_JOB)) == {None: "skip"}


@pytest.mark.parametrize(
    "check",
    [named("host-python"), named("host-torch"), named("host-packages"), named("host-clusterkit")],
)
def test_in_a_container_the_hosts_python_does_not_count(check: Check) -> None:
    """The image brings its own."""
    assert verdicts(check, evidence({"n1": {}}, job=_docker())) == {None: "skip"}
