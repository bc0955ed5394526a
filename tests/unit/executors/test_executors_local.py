"""Local jobs from submission to the last sweep, with real processes."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterkit.core import files, processes, timing
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import ClusterKind, JobState, LaunchPlan, RequeueOn
from clusterkit.core.ports import groups, hold_port
from clusterkit.core.shell import Secret
from clusterkit.executors import submit_plan
from clusterkit.executors.local.controller import split_devices
from clusterkit.executors.node.identity import visible_gpus
from clusterkit.executors.node.supervisor import BLOCKED, Start, Supervisor, sweep
from clusterkit.executors.node.watch import blocked
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.jobs.state.load import Job, load_job
from clusterkit.jobs.watch import cancel, wait
from tests.helpers.needs import lack
from tests.helpers.paths import ROOT
from tests.helpers.plans import make_cluster, make_plan, node_script


class Runs:
    """Start local jobs, and see to it that none is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[RunFolder] = []

    def plan(self, **changes: object) -> LaunchPlan:
        return make_plan(make_cluster(self.folder), **changes)

    def start(self, body: str, plan: LaunchPlan | None = None, **secrets: Secret) -> RunFolder:
        plan = plan or self.plan()
        run = runfolder.create(plan.cluster, plan.name)
        self.started.append(run)
        submit_plan(plan, [node_script(body)], run, secrets=secrets, command_line=["test"])
        return run


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    for run in made.started:
        left = processes.marked(run.marker(), prefix=True)
        processes.kill_all(lambda run=run: processes.marked(run.marker(), prefix=True))
        assert not [pid for pid in left if processes.alive(pid)], run.run_id


def said(job: Job) -> tuple[JobState, int | None]:
    return job.status.state, job.status.exit_code


def log(run: RunFolder, rank: int = 0) -> str:
    return run.log(rank).read_text()


def await_line(run: RunFolder, line: str, rank: int = 0) -> None:
    deadline = time.monotonic() + 120
    while not run.log(rank).exists() or line not in log(run, rank):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


@contextmanager
def time_held(run: RunFolder) -> Iterator[None]:
    """Have nobody look at the time of a job of one node, from the start of its worker on."""
    deadline = time.monotonic() + 120
    while (controller := files.read_json(run.controller)) is None or not processes.children(
        controller["pid"]
    ):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
    os.kill(controller["pid"], signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(controller["pid"], signal.SIGCONT)


def test_success_and_what_each_node_is_given(runs: Runs) -> None:
    run = runs.start(
        'echo "$CK_NODE_RANK $CK_NODE_NAME|$CK_NODES|$CK_SLOTS|$CK_NNODES|$CK_HEAD_ADDR|$CK_PORT"'
    )
    assert said(wait(run)) == (JobState.SUCCEEDED, 0)
    first, second = log(run, 0).split("|"), log(run, 1).split("|")
    assert (first[0], second[0]) == ("0 node-0", "1 node-1")
    assert first[1:] == second[1:]
    assert first[1:5] == ["node-0 node-1", "1 1", "2", "127.0.0.1"]
    assert 20000 <= int(first[5]) <= 29999


def test_the_first_failure_decides_and_the_others_are_ended(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(timing.VARIABLE, "0.2")
    run = runs.start('[[ $CK_NODE_RANK = 0 ]] && { trap "" TERM; sleep 100; }; sleep 0.3; exit 3')
    job = wait(run)
    assert said(job) == (JobState.FAILED, 3)
    assert job.status.reason == "node-1 exited with 3"
    ends = [(one.node_rank, one.reason) for one in job.results]
    assert ends == [(0, "peer"), (1, None)], "the first was not waited for"


@pytest.mark.parametrize(
    ("body", "attempts", "ends"),
    [
        ("echo step $((CK_RESTART_COUNT + 4)); exit $((CK_RESTART_COUNT < 2))", 3, None),
        ("exit 3", 2, "node-0 exited with 3; as in the attempt before, with no step told"),
        ("echo step 4; exit 3", 2, "node-0 exited with 3; as in the attempt before, at step 4"),
        ("exit $((3 + CK_RESTART_COUNT))", 4, "node-0 exited with 6"),
    ],
)
def test_after_any_failure_where_that_was_asked_for(
    runs: Runs, body: str, attempts: int, ends: str | None
) -> None:
    """Not where it got no further than before, and at most so often."""
    plan = runs.plan(nodes=1, requeue=3, requeue_on=RequeueOn.FAILURE)
    job = wait(runs.start(body, plan))
    assert len(node_results.read_attempts(job.run)) == attempts
    assert job.status.reason == ends


def test_a_signal_is_never_success(runs: Runs) -> None:
    run = runs.start("kill -SEGV $$", runs.plan(nodes=1))
    job = wait(run)
    assert said(job) == (JobState.FAILED, 139)
    assert job.status.reason == "node-0 was ended by signal 11"


def catcher(folder: Path) -> str:
    """Return the command of a rank that tells of a notice, in its output and by a file."""
    program = (
        "import pathlib, signal, time\n"
        "def heed(*_):\n"
        "    print('notice', flush=True)\n"
        f"    pathlib.Path('{folder}/noticed').touch()\n"
        "signal.signal(signal.SIGUSR2, heed)\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.1)\n"
    )
    files.write_text(folder / "catcher.py", program)
    return f"{sys.executable} {folder}/catcher.py"


def test_the_time_limit_with_a_notice_before_it(runs: Runs) -> None:
    # On a machine that stands still for a while, one may come right after the other.
    end = f"until [ -e {runs.folder}/noticed ]; do sleep 0.1; done; kill \\$child"
    run = runs.start(
        f'trap "{end}" TERM; {catcher(runs.folder)} & child=$!; wait $child; wait $child',
        runs.plan(nodes=1, time_limit_s=6),
    )
    with time_held(run):
        await_line(run, "ready")
    job = wait(run)
    assert said(job) == (JobState.TIMEOUT, 143)
    assert log(run).splitlines() == ["ready", "notice"]
    assert job.results[0].reason == "timeout"


def test_a_notice_comes_as_early_as_the_job_asks(runs: Runs) -> None:
    """Just after the start, where of itself it would come long after the test."""
    plan = runs.plan(nodes=1, time_limit_s=3600, directives={"signal": "USR2@3597"})
    run = runs.start(f"exec {catcher(runs.folder)}", plan)
    with time_held(run):
        await_line(run, "ready")
    await_line(run, "notice")
    assert said(cancel(run))[0] is JobState.CANCELLED


def test_a_notice_waits_for_a_worker_that_is_slow_to_begin(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "import sys, time\ntime.sleep(3 * ('clusterkit.executors.node' in sys.orig_argv))\n"
    (runs.folder / "slow").mkdir()
    files.write_text(runs.folder / "slow" / "sitecustomize.py", slow)
    monkeypatch.setenv("PYTHONPATH", str(runs.folder / "slow"), prepend=os.pathsep)
    run = runs.start("sleep 300", runs.plan(nodes=1, time_limit_s=2))
    job = wait(run)
    assert (job.status.state, job.status.reason) == (JobState.TIMEOUT, None)


def test_cancel_a_running_job_twice(runs: Runs) -> None:
    run = runs.start("echo ready; sleep 100")
    await_line(run, "ready")
    about = files.read_json(run.controller)
    assert said(cancel(run)) == (JobState.CANCELLED, 143)
    assert about is not None
    assert not processes.alive(about["pid"])
    assert not processes.marked(run.marker(), prefix=True)
    assert said(cancel(run)) == (JobState.CANCELLED, 143)
    assert {r.reason for r in load_job(run).results} == {"cancelled"}


def test_a_function_that_passes_over_sigterm_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterkit.executors.node.supervisor._END_GRACE_S", 1e6)
    cluster = make_cluster(tmp_path)
    run = runfolder.create(cluster, "toy")
    supervisor = Supervisor(run, marker=run.marker(), time_limit_s=1.0, aware=False)
    start = Start(
        argv=("bash", "-c", "trap '' TERM; while :; do sleep 0.1; done"),
        environment=dict(os.environ),
        log=tmp_path / "log",
    )
    with blocked(BLOCKED):
        assert supervisor.run_to_end((start,)) == (-signal.SIGKILL,)
    assert supervisor.state is JobState.TIMEOUT


def test_cancel_before_anything_started(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = runs.plan()
    run = runfolder.create(plan.cluster, plan.name)
    files.create_text(run.cancelled, "")
    submit_plan(plan, [node_script("echo never")], run, secrets={}, command_line=[])
    assert said(wait(run)) == (JobState.CANCELLED, None)
    assert not run.log(0).exists()


def test_cancel_leaves_a_finished_job_as_it_is(runs: Runs) -> None:
    run = runs.start("true")
    wait(run)
    assert said(cancel(run)) == (JobState.SUCCEEDED, 0)
    assert not run.cancelled.exists()


_ATTENDS = """
import sys, time
from pathlib import Path
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.submit.submit import ended_with_client
with ended_with_client() as watch:
    watch(RunFolder(Path(sys.argv[1])))
    print("on", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_a_job_whose_client_is_killed_is_cancelled_where_it_is_for_that_client(
    runs: Runs, killed: bool
) -> None:
    run = runs.start("echo ready; sleep 300")
    await_line(run, "ready")
    argv = [sys.executable, "-c", _ATTENDS, str(run.path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"on\n"
        if killed:
            client.kill()
            assert said(wait(run)) == (JobState.CANCELLED, 143)
        else:
            client.communicate()
            time.sleep(1.0)
            assert not run.cancelled.exists()
            cancel(run)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=1m", "own", str(disk)]
    if subprocess.run(argv, check=False, capture_output=True).returncode:
        lack("no right to mount a tmpfs", "run the tests as root")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize(("body", "end"), [("true", ("succeeded", 0)), ("exit 7", ("failed", 7))])
def test_a_run_folder_whose_disk_is_full_is_told(
    small_disk: Path, body: str, end: tuple[str, int]
) -> None:
    runs, elsewhere = Runs(small_disk), small_disk.parent

    def once(name: str) -> str:
        return f"until [ -e {elsewhere}/{name} ]; do sleep 0.1; done"

    fill = f"dd if=/dev/zero of={small_disk}/left bs=4k 2>/dev/null; touch {elsewhere}/full"
    others = f"touch {elsewhere}/$CK_NODE_RANK; {once('0')}; {once('1')}"
    run = runs.start(
        f"echo on; {others}; [ $CK_NODE_RANK != 0 ] || {{ {fill}; }}; {once('full')}; {body}"
    )
    job = wait(run)
    assert (job.status.state.value, job.status.exit_code) == end
    assert "could not write all of the output" in (job.status.reason or "")
    assert "No space left on device" in (job.status.reason or "")


@pytest.mark.parametrize("full", [False, True])
def test_looking_at_a_job_that_nobody_knows_writes_nothing(small_disk: Path, full: bool) -> None:
    """Not even to learn whether its run folder takes any data."""
    run = runfolder.create(make_cluster(small_disk), "toy")
    submission = Submission(
        run_id=run.run_id, name="toy", cluster="local", kind=ClusterKind.LOCAL, nodes=2, tasks=2,
        framework="torchrun", submitted_at=0.0, job_id="local-abcdef",
    )  # fmt: skip
    runfolder.write_submission(run, submission)
    if full:
        with pytest.raises(OSError, match="No space left"):
            (small_disk / "left").write_bytes(bytes(2 << 20))
    before = run.path.stat().st_mtime_ns
    status = load_job(run).status
    assert status.state is JobState.UNKNOWN
    assert ("No space left on device" in (status.reason or "")) is full
    assert run.path.stat().st_mtime_ns == before


def test_a_run_folder_that_has_become_read_only_is_told(small_disk: Path, tmp_path: Path) -> None:
    runs = Runs(small_disk)
    go = small_disk / "go"
    run = runs.start(f"echo ready; until [ -e {go} ]; do sleep 0.1; done")
    await_line(run, "ready")
    # A remount is refused while somebody writes there. So it is read-only before anybody sees it.
    unseen = tmp_path / "read-only"
    unseen.mkdir()
    subprocess.run(["mount", "--bind", str(run.path), str(unseen)], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", str(unseen)], check=True)
    subprocess.run(["mount", "--bind", str(unseen), str(run.path)], check=True)
    subprocess.run(["umount", str(unseen)], check=True)
    try:
        go.touch()
        deadline = time.monotonic() + 120
        while "Read-only file system" not in (load_job(run).status.reason or ""):
            assert time.monotonic() < deadline, load_job(run).status
            time.sleep(0.1)
    finally:
        subprocess.run(["umount", "--lazy", str(run.path)], check=True)


def test_a_killed_controller_means_unknown_and_can_be_cancelled(runs: Runs) -> None:
    run = runs.start("echo ready; trap '' TERM; sleep 100")
    await_line(run, "ready")
    controller = files.read_json(run.controller)
    assert controller is not None
    os.kill(controller["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while processes.alive(controller["pid"]) and time.monotonic() < deadline:
        time.sleep(0.02)
    status = load_job(run).status
    assert status.state is JobState.UNKNOWN
    assert status.reason is not None
    assert "its controller has gone" in status.reason
    # Its workers are on their own now; cancelling ends what they started.
    assert said(cancel(run))[0] in {JobState.CANCELLED, JobState.FAILED}


def test_a_killed_worker_leaves_nothing_and_the_job_failed(runs: Runs) -> None:
    run = runs.start("echo ready; setsid sleep 100 & sleep 100")
    await_line(run, "ready")
    for pid in processes.children(files.read_json(run.controller)["pid"]):  # type: ignore[index]
        os.kill(pid, signal.SIGKILL)
    job = wait(run)
    assert said(job) == (JobState.FAILED, 137)


def test_the_job_survives_its_client(runs: Runs, tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from pathlib import Path\n"
        "from tests.helpers.plans import *\n"
        "from clusterkit.executors.run import runfolder\n"
        "from clusterkit.executors import submit_plan\n"
        f"plan = make_plan(make_cluster(Path({str(tmp_path)!r})))\n"
        "run = runfolder.create(plan.cluster, plan.name)\n"
        "submit_plan(plan, [node_script('sleep 2; echo done')], run, secrets={})\n"
        "print(run.path, flush=True)\n"
        "import os, signal; os.killpg(0, signal.SIGKILL)\n"
    )
    client = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        start_new_session=True,
        cwd=ROOT,
    )
    assert client.returncode == -signal.SIGKILL
    run = RunFolder(Path(client.stdout.strip()))
    runs.started.append(run)
    assert said(wait(run)) == (JobState.SUCCEEDED, 0)
    assert "done" in log(run, 1)


def test_another_jobs_environment_does_not_leak_in(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_CPU_BIND", "PMIX_RANK", "SBATCH_EXCLUSIVE", "CK_PORT", "SUBMITIT_EXECUTOR"):
        monkeypatch.setenv(name, "leak")
    for name in ("WANDB_RUN_ID", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"):
        monkeypatch.setenv(name, "leak")
        monkeypatch.setenv(f"CK_DEFAULT_{name}", "leak")
    monkeypatch.setenv("CK_DEFAULT_WANDB_NAME", "leak")
    monkeypatch.setenv("WANDB_NAME", "chosen in the job")
    monkeypatch.setenv("SLURM_CONF", "/etc/here")
    monkeypatch.setenv("MINE", "kept")
    run = runs.start("env", runs.plan(nodes=1))
    wait(run)
    variables = log(run).splitlines()
    assert f"CK_RUN={run.run_id}" in variables
    assert not [line for line in variables if line.endswith("=leak")]
    assert "MINE=kept" in variables
    assert "WANDB_NAME=chosen in the job" in variables
    assert "SLURM_CONF=/etc/here" in variables


def test_secrets_reach_the_command_and_nothing_else(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hush-hush")
    plan = runs.plan(nodes=1, secrets=("TOKEN",))
    run = runs.start("[[ $TOKEN = hush-* ]] && echo ok", plan, TOKEN=Secret("hush-hush"))
    assert run.secrets.stat().st_mode & 0o777 == 0o600
    controller = files.read_json(run.controller)
    assert controller is not None
    environment = Path(f"/proc/{controller['pid']}/environ")
    assert b"hush" not in (environment.read_bytes() if environment.exists() else b"")
    assert said(wait(run)) == (JobState.SUCCEEDED, 0)
    assert log(run) == "ok\n"
    assert not run.secrets.exists(), "gone once the job is over"
    for path in run.path.rglob("*"):
        assert path.is_dir() or b"hush-hush" not in path.read_bytes(), path


def test_a_missing_secret_is_named_before_anything_starts(runs: Runs) -> None:
    with pytest.raises(UserError, match="TOKEN"):
        runs.start("true", runs.plan(secrets=("TOKEN",)))


def test_a_controller_that_cannot_start_says_why(runs: Runs) -> None:
    cluster = make_cluster(runs.folder, port_range=(25000, 25009))
    with socket.create_server(("127.0.0.1", 25000)), pytest.raises(RemoteError, match="free port"):
        runs.start("true", make_plan(cluster))


def test_submissions_at_the_same_moment_never_meet(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path)
    made = {runfolder.create(cluster, "a/b c", now=0.0).path for _ in range(50)}
    assert len(made) == 50
    assert all(path.name.startswith("a-b-c-") for path in made)


def test_a_run_folder_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot create .*/file") as caught:
        runfolder.create(make_cluster(tmp_path / "file"), "toy")
    assert caught.value.problems[0].hint
    with pytest.raises(UserError, match="cannot create /proc/"):
        runfolder.create(make_cluster(Path("/proc/runs")), "toy")


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full")
    with pytest.raises(UserError, match="No space left on device") as caught, files.explained(full):
        full.write_text("x")
    assert "disk is full" in (caught.value.problems[0].hint or "")


@pytest.mark.parametrize("links", [True, False])
def test_a_file_is_created_once_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    path = tmp_path / "first"
    tmp_path.chmod(0o750)
    assert files.create_text(path, "one")
    assert not files.create_text(path, "two")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("one", 0o640)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UserError, match="cannot write"):
        files.create_text(tmp_path / "no" / "folder", "")


def test_devices_are_split_where_there_are_enough() -> None:
    assert split_devices("0123", (2, 2)) == (("0", "1"), ("2", "3"))
    assert split_devices("0123", (1, 2)) == (("0",), ("1", "2"))
    assert split_devices("0123", (1, 2, 1)) == (("0",), ("1", "2"), ("3",))
    assert split_devices("0", (1, 1)) is None
    assert split_devices("", (1,)) is None


def test_visible_devices_of_the_caller_are_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, 3")
    assert visible_gpus() == ("GPU-a", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == ()


def test_ports_follow_from_the_job_and_avoid_what_is_taken() -> None:
    ports = {"low": 21000, "high": 21999, "seed": "local-1"}
    first = hold_port(**ports)
    second = hold_port(**ports)  # another job, whose launcher does not listen yet
    assert second.number != first.number
    assert first.number % 10 == second.number % 10 == 0
    first.hold.close()
    with socket.create_server(("127.0.0.9", first.number)):  # launchers want all addresses
        assert hold_port(**ports).number not in {first.number, second.number}
    assert hold_port(**ports).number == first.number
    assert sorted(groups(21000, 21029, seed="local-1")) == [21000, 21010, 21020]


def test_the_folder_can_be_read_by_a_person(runs: Runs) -> None:
    run = runs.start("true")
    wait(run)
    plan = json.loads(run.plan.read_text())
    assert plan["framework"] == "torchrun"
    assert plan["cluster"]["kind"] == "local"
    submission = json.loads(run.submission.read_text())
    assert submission["job_id"] == f"local-{run.key}"
    assert submission["command_line"] == ["test"]


def test_of_a_node_script_that_is_killed_no_folder_is_left(tmp_path: Path) -> None:
    ours, another = tmp_path / "clusterkit-1-abcdef", tmp_path / "clusterkit-data"
    started = []
    for folder in (ours, another):
        folder.mkdir()
        (folder / "file").touch()
        environment = {**os.environ, processes.MARKER: str(tmp_path), "CK_TMP": str(folder)}
        started.append(subprocess.Popen(["sleep", "300"], env=environment))
    sweep(str(tmp_path))
    assert [process.wait() for process in started] == [-signal.SIGKILL] * 2
    assert [*tmp_path.iterdir()] == [another]
