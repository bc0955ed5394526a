"""`clusterkit diagnose --stacks`: py-spy on all nodes, folded by identical stack."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterkit.cli.diagnose.verb import show_stacks
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterKind, JobState, JobStatus
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.jobs.state.load import Job
from clusterkit.observe.diagnose.stacks import (
    Stack,
    Stacks,
    Trouble,
    fold_stacks,
    parse_stacks,
    take_stacks,
)
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import Output, Probe, Reach, ReachProblem
from tests.helpers.needs import lack, require

DUMP = """\
@ {pid} {rank}
Process {pid}: python train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
    {frame}
    <module> (train.py:50)
Thread 4800 (active): "pin"
    run (threading.py:982)
"""
WAITS = "all_reduce (torch/distributed/distributed_c10d.py:2501)"
LATE = "load (train.py:12)"
PROBE: Probe[str] = Probe(name="stacks", command="", parse=str)


def dump(rank: int, frame: str) -> str:
    return DUMP.format(pid=4711 + rank, rank=rank, frame=frame)


def reply(node: str, text: str) -> Reply:
    return Reply(node=node, reach=Reach(), outputs={"stacks": Output(stdout=text)})


def test_ranks_that_stand_alike_are_one_and_the_odd_one_is_first() -> None:
    first = reply("n1", dump(0, WAITS) + dump(1, WAITS))
    second = reply("n2", dump(2, WAITS) + dump(3, LATE))
    found = fold_stacks(PROBE, (first, second))
    told = [(group.ranks, group.nodes, group.frames[0]) for group in found.groups]
    assert told == [((3,), ("n2",), LATE), ((0, 1, 2), ("n1", "n2"), WAITS)]
    assert found.troubles == ()
    two = fold_stacks(PROBE, (reply("n1", dump(0, WAITS)), reply("n2", dump(1, LATE))))
    assert [group.ranks for group in two.groups] == [(1,), (0,)], "of two, who waits is the last"


@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        ("! none\n", "no rank of the job was found", "not started"),
        ("@ 7 0\n! missing\n", "py-spy is missing", "pip install py-spy"),
        ("@ 7 0\nError: Permission Denied: Try again as root\n! failed\n", "ptrace", "--pid 7"),
        ("@ 7 0\nError: Operation not permitted (os error 1)\n! failed\n", "ptrace", "SYS_PTRACE"),
        ("@ 7 0\nError: Failed to find python\n! failed\n", "process 7: Error: Failed to", ""),
    ],
)
def test_what_is_in_the_way_is_told(said: str, message: str, hint: str) -> None:
    (trouble,) = parse_stacks(said, "n1")
    assert isinstance(trouble, Trouble)
    assert message in trouble.message
    assert hint in (trouble.hint or "")


def test_of_a_job_in_containers_what_is_in_the_way_is_on_the_node() -> None:
    for said, hint in (("! none\n", "ask again as root"), ("@ 7 0\n! missing\n", "of the node")):
        (trouble,) = fold_stacks(PROBE, [reply("n1", said)], contained=True).troubles
        assert hint in (trouble.hint or "")
        (trouble,) = fold_stacks(PROBE, [reply("n1", said)]).troubles
        assert hint not in (trouble.hint or "")


def test_a_rank_is_of_the_node_that_its_environment_names_and_told_once() -> None:
    both = dump(0, WAITS).replace("@ 4711 0", "@ 4711 0 n1") + dump(1, LATE).replace(
        "@ 4712 1", "@ 4712 1 n2"
    )
    found = fold_stacks(PROBE, (reply("n1", both), reply("n2", both)))
    assert [(group.ranks, group.nodes) for group in found.groups] == [
        ((1,), ("n2",)),
        ((0,), ("n1",)),
    ]


def test_one_node_in_trouble_hides_no_other() -> None:
    lost = Reply(
        node="n3", reach=Reach(problem=ReachProblem.TIMEOUT, detail="no answer within 10 s")
    )
    silent = Reply(node="n2", reach=Reach(), outputs={"stacks": Output(stdout="", exit_code=None)})
    both = reply("n1", dump(0, LATE) + "@ 7 1\n! missing\n@ 8 2\n! missing\n")
    found = fold_stacks(PROBE, (both, silent, lost))
    assert [group.ranks for group in found.groups] == [(0,)]
    assert [trouble.node for trouble in found.troubles] == ["n1", "n2", "n3"]
    assert found.troubles[2].message == "no answer within 10 s"


def test_nodes_in_the_same_trouble_are_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    denied = "@ {} 0\nError: Permission Denied\n! failed\n"
    replies = [reply(f"n{n}", denied.format(n)) for n in range(1, 65)]
    replies += [reply("n70", "@ 7 1\n! missing\n")]
    found = fold_stacks(PROBE, replies)
    run = RunFolder(tmp_path)
    monkeypatch.setattr("clusterkit.jobs.state.load.load_job", job_of)
    monkeypatch.setattr("clusterkit.observe.diagnose.stacks.take_stacks", lambda _: found)
    assert show_stacks(run, as_json=False) == 2
    lines = [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()]
    said = [line for line in lines if "n[1-64]" in line or "n70: py-spy" in line]
    assert len(said) == 2, lines
    assert sum("ptrace_scope" in line for line in lines) == 1


def test_a_torn_dump_is_what_there_is() -> None:
    (stack,) = parse_stacks(dump(5, LATE)[: -len("    run (threading.py:982)\n")], "n1")
    assert isinstance(stack, Stack)
    assert (stack.rank, stack.frames) == (5, (LATE, "<module> (train.py:50)"))


# Real processes ---------------------------------------------------------------------------------

SCRIPT = """\
import subprocess, sys, time

def late():
    print("ready", flush=True)
    time.sleep(120)

def waits():
    print("ready", flush=True)
    time.sleep(120)

if sys.argv[1] == "late":
    late()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
try:
    waits()
finally:
    child.kill()
"""


@contextmanager
def ranks(run: RunFolder, script: Path, *words: str) -> Iterator[None]:
    """Run a process for each rank, marked as clusterkit's worker marks them."""
    script.write_text(SCRIPT)
    started = []
    try:
        for rank, word in enumerate(words):
            told = {**os.environ, "CK_JOB_UID": run.marker(0), "RANK": str(rank)}
            argv = [sys.executable, script, word]
            started.append(
                subprocess.Popen(argv, env=told, stdout=subprocess.PIPE, start_new_session=True)
            )
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)  # with its child
            process.wait(60)
            if process.stdout is not None:
                process.stdout.close()


def job_of(run: RunFolder, state: JobState = JobState.RUNNING) -> Job:
    submission = Submission(
        run_id=run.run_id, name="toy", cluster="local", kind=ClusterKind.LOCAL,
        framework="torchrun", nodes=1, tasks=1, submitted_at=1.0,
    )  # fmt: skip
    return Job(run=run, submission=submission, status=JobStatus(state=state))


def test_the_ranks_of_a_job_are_found_and_no_others(tmp_path: Path) -> None:
    require("py-spy")
    run = RunFolder(tmp_path / f"toy-20261122-120000-{secrets.token_hex(3)}")
    other = RunFolder(tmp_path / f"toy-20261122-120000-{secrets.token_hex(3)}")
    with (
        ranks(run, tmp_path / "a.py", "waits", "late", "waits"),
        ranks(other, tmp_path / "b.py", "waits"),
    ):
        found = take_stacks(job_of(run))
    if any("ptrace" in trouble.message for trouble in found.troubles):
        lack("py-spy may not look into processes here", "sudo make test")
    assert [group.ranks for group in found.groups] == [(1,), (0, 2)], found
    assert found.groups[0].frames[0].startswith("late (")
    assert found.groups[1].frames[0].startswith("waits (")
    (children,) = found.groups[1].children
    assert children.startswith("python")
    assert children.endswith(" (2)")
    assert found.troubles == ()


STUB = """\
#!/bin/sh
printf 'Thread 1 (idle): "MainThread"\n    at (train.py:1)\n'
"""


def test_the_workers_of_a_launcher_are_the_ranks_and_not_itself(tmp_path: Path) -> None:
    """Slurm's pmi2 gives the launcher PMI_RANK, which the workers have in front of RANK."""
    run = RunFolder(tmp_path / f"toy-20261122-120000-{secrets.token_hex(3)}")
    spy = tmp_path / "py-spy"
    spy.write_text(STUB)
    spy.chmod(0o755)
    script = (
        "import os, subprocess, sys\n"
        "waits = 'import os; os.write(1, bytes([10])); os.read(0, 1)'\n"
        "env = [{**os.environ, 'RANK': str(rank)} for rank in (1, 2)]\n"
        "started = [subprocess.Popen([sys.executable, '-c', waits], env=one) for one in env]\n"
        "[one.wait() for one in started]\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.endswith("RANK")}
    env |= {"PATH": f"{tmp_path}:{env['PATH']}", "CK_JOB_UID": run.marker(0), "PMI_RANK": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True,
    ) as agent:  # fmt: skip
        try:
            assert agent.stdout is not None
            for _ in range(2):
                assert agent.stdout.readline() == b"\n"
            found = take_stacks(job_of(run))
        finally:
            os.killpg(agent.pid, signal.SIGKILL)
    assert [group.ranks for group in found.groups] == [(1, 2)], found
    assert found.troubles == ()


def test_without_ranks_or_after_its_end_it_says_so(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / f"toy-20261122-120000-{secrets.token_hex(3)}")
    found = take_stacks(job_of(run))
    assert [trouble.message for trouble in found.troubles] == ["no rank of the job was found"]
    with pytest.raises(UserError, match="has ended: failed"):
        take_stacks(job_of(run, JobState.FAILED))


def test_children_and_a_lock_that_nobody_holds_are_told() -> None:
    baton = dump(0, "wait (torch/utils/file_baton.py:48)")
    lock = "! lock 4711 /home/a b/.cache/torch_extensions/py311_cu121/cpu_adam/lock\n"
    below = "+ 0 pt_data_worker\n+ 0 pt_data_worker\n+ 1 python3\n"
    found = fold_stacks(PROBE, [reply("n1", baton + lock + below + dump(1, LATE))])
    assert {group.ranks: group.children for group in found.groups} == {
        (0,): ("pt_data_worker (2)",),
        (1,): ("python3",),
    }
    (trouble,) = found.troubles
    assert "/torch_extensions/py311_cu121/cpu_adam/lock" in trouble.message
    assert (trouble.hint or "").endswith("rm '/home/a b/.cache/torch_extensions/py311_cu121/"
                                         "cpu_adam/lock'")  # fmt: skip
    holder = "_write_ninja_file_and_build_library (torch/utils/cpp_extension.py:2100)"
    for building in (dump(1, LATE) + "+ 1 ninja\n", dump(1, holder)):
        assert fold_stacks(PROBE, [reply("n1", baton + lock + building)]).troubles == ()


EXTENSION = """\
import sys
import torch.utils.cpp_extension as extensions

print("ready", flush=True)
extensions.load_inline("toy", cpp_sources="int f() { return 1; }", functions=["f"])
"""
SLOW = """\
#!/bin/sh
n=0
case " $* " in *" -c "*)
while [ -e @GO@ ] && [ $n -lt 600 ]; do sleep 0.2; n=$((n + 1)); done
exit 1 ;; esac
exec c++ "$@"
"""


def test_a_build_that_was_killed_leaves_a_lock_that_holds_the_next_job(tmp_path: Path) -> None:
    require("py-spy", "torch", "ninja", "c++")
    compiler, script, slow = (tmp_path / name for name in ("slow-c++", "x.py", "slow"))
    compiler.write_text(SLOW.replace("@GO@", str(slow)))
    slow.touch()
    compiler.chmod(0o755)
    script.write_text(EXTENSION)
    run = RunFolder(tmp_path / f"toy-20261122-120000-{secrets.token_hex(3)}")
    env = {**os.environ, "CK_JOB_UID": run.marker(0), "RANK": "0", "CXX": str(compiler)}
    env["TORCH_EXTENSIONS_DIR"] = str(tmp_path / "ext")
    lock = tmp_path / "ext" / "toy" / "lock"

    def seen(wanted: str) -> Stacks:
        with subprocess.Popen(
            [sys.executable, script], env=env, stdout=subprocess.PIPE, start_new_session=True
        ) as rank:
            try:
                assert rank.stdout is not None
                assert rank.stdout.readline() == b"ready\n"
                until = time.monotonic() + 60
                while time.monotonic() < until:
                    found = take_stacks(job_of(run))
                    if any("ptrace" in trouble.message for trouble in found.troubles):
                        lack("py-spy may not look into processes here", "sudo make test")
                    if wanted in repr(found):
                        return found
                    time.sleep(0.2)
                pytest.fail(f"no {wanted} in {found}")
            finally:
                os.killpg(rank.pid, signal.SIGKILL)

    building = seen("ninja")
    slow.unlink()  # ninja gives its children groups of their own
    assert building.troubles == ()
    assert lock.exists(), "which the killed build has left"
    (trouble,) = seen("file_baton").troubles
    assert str(lock) in trouble.message
    assert (trouble.hint or "").endswith(f"rm {lock}")
