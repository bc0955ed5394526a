"""The worker with real processes: exit codes, signals, leftovers, peers, environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import cloudpickle
import pytest

from clusterkit.core import files, processes
from clusterkit.core.commands import Answer
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterKind, NodeResult
from clusterkit.core.shell import Secret
from clusterkit.executors.node import Identity, LaunchTask, watch
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers.needs import require
from tests.helpers.plans import environment, make_cluster, node_script

QUICK = "LaunchTask({path!r}, Timeouts(grace_s=4.0, peer_grace_s=0.5, poll_s=0.1))"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    folder = runfolder.create(make_cluster(tmp_path / 'a run\'s "dir" ü'), "toy")
    yield folder
    assert not marked(folder), "processes were left behind"


def marked(run: RunFolder) -> set[int]:
    return {pid for pid in processes.marked(run.marker(), prefix=True) if processes.alive(pid)}


def start(
    run: RunFolder, body: str, rank: int = 0, nodes: int = 1, code: str = "", **env: str
) -> subprocess.Popen[bytes]:
    """Write a node.sh of this body and launch it."""
    script = node_script(body)
    files.write_text(run.path / script.name, script.text)
    return launch(run, rank, nodes, code, **env)


def launch(
    run: RunFolder, rank: int = 0, nodes: int = 1, code: str = "", **env: str
) -> subprocess.Popen[bytes]:
    """Start LaunchTask in a process of its own, as submitit would, after `code`."""
    code += (
        "\nfrom clusterkit.executors.node import LaunchTask\n"
        "from clusterkit.executors.node.watch import Timeouts\n"
        f"print({QUICK.format(path=str(run.path))}())"
    )
    variables = {**os.environ, **environment(rank, nodes), **env}
    return subprocess.Popen([sys.executable, "-c", code], env=variables, stdin=subprocess.DEVNULL)


def result(run: RunFolder, rank: int = 0) -> NodeResult:
    found = {r.node_rank: r for r in node_results.read_results(run).nodes}
    return found[rank]


def log(run: RunFolder, rank: int = 0) -> str:
    return run.log(rank).read_text(encoding="utf-8")


def wait_until(condition: Callable[[], object], timeout_s: float = 50.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("true", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -KILL $$", 137),
        ("kill -SEGV $$", 139),
        ("no-such-command-anywhere", 127),
        ("exec /etc/passwd", 126),
        ("kill -TERM $$", 143),
    ],
)
def test_exit_code_is_the_commands_own(run: RunFolder, body: str, code: int) -> None:
    start(run, body).wait(50)
    assert result(run).exit_code == code
    assert result(run).reason is None


def test_a_missing_node_script_is_a_failure(run: RunFolder) -> None:
    launch(run).wait(50)
    assert (result(run).exit_code, result(run).reason) == (127, None)
    assert "node.sh: No such file or directory" in log(run)


def test_a_job_cancelled_before_it_started_never_starts(run: RunFolder) -> None:
    files.create_text(run.cancelled, "")
    start(run, "echo never").wait(50)
    assert (result(run).exit_code, result(run).reason) == (143, "cancelled")
    assert not run.log(0).exists()
    assert not list(run.failures.iterdir())


def test_output_of_both_streams_in_order_and_undecoded(run: RunFolder) -> None:
    start(run, r"echo out; echo err >&2; printf '\xff\xfe\n'; printf partial").wait(50)
    assert run.log(0).read_bytes() == b"out\nerr\n\xff\xfe\npartial"


def test_a_restart_appends_below_a_header(run: RunFolder) -> None:
    start(run, "echo first").wait(50)
    start(run, "echo second", CK_RESTART_COUNT="1").wait(50)
    first, header, second = log(run).splitlines()
    assert (first, second) == ("first", "second")
    assert header.startswith("--- clusterkit: restart 1 on node-0, ")
    assert node_results.read_results(run).attempt == 1


def submitted_to_slurm(
    run: RunFolder, *, nodes: int, kind: ClusterKind = ClusterKind.SLURM
) -> None:
    """Write down a job that Slurm may start once more."""
    submission = runfolder.Submission(
        run_id=run.run_id, name="toy", cluster="lab", kind=kind, nodes=nodes,
        tasks=nodes, framework="torchrun", submitted_at=time.time(), job_id="7", requeue=1,
    )  # fmt: skip
    runfolder.write_submission(run, submission)


@pytest.mark.parametrize("kind", ["slurm", "ssh", "local"])
def test_a_failure_is_known_before_its_node_looks_at_itself(run: RunFolder, kind: str) -> None:
    """For the look of a broken node takes longest; and one that nobody can replace does not."""
    submitted_to_slurm(run, nodes=1, kind=ClusterKind(kind))
    noted = run.failures / "0.json"
    look = f"task.why_broken = lambda *_: 'Xid 79' * os.path.exists({str(noted)!r})"
    code = f"import os; from clusterkit.executors.node import task; {look}"
    worker = start(run, "exit 3", code=code)
    assert worker.wait(50) == 0
    found, first = result(run), node_results.first_failure(run, 0)
    assert first is not None
    fault = "Xid 79" if kind != "local" else None
    assert (found.fault, first.fault, first.exit_code) == (fault, fault, 3)


@pytest.mark.parametrize("how", ["", "SIGTERM", "peer", "cancel"])
def test_a_job_that_is_cancelled_while_a_node_looks_at_itself_is_not_given_back(
    run: RunFolder, tmp_path: Path, how: str
) -> None:
    """Slurm would start it again; srun's SIGTERM after the end of another node is none of that."""
    submitted_to_slurm(run, nodes=2)
    if how == "peer":
        failed = NodeResult(node_rank=1, node="node-1", exit_code=1, started_at=0, ended_at=1)
        node_results.replace_result(run, failed, attempt=0, n_nodes=2)
    scontrol = tmp_path / "bin/scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n')
    scontrol.chmod(0o755)
    ends = f"pathlib.Path({str(run.cancelled)!r}).touch()" if how == "cancel" else "0"
    if how in {"SIGTERM", "peer"}:
        ends = "os.kill(os.getpid(), signal.SIGTERM)"
    code = (
        "import os, pathlib, signal; from clusterkit.executors.node import task\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        f"task.why_broken = lambda *_: {ends} or 'Xid 79'"
    )
    path = f"{scontrol.parent}:{os.environ['PATH']}"
    worker = start(run, "exit 3", 0, 2, code, PATH=path, SLURM_JOB_ID="7")
    assert worker.wait(50) == 0
    asked = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    assert ("requeue 7" in asked) == (how in {"", "peer"})
    assert result(run).fault == "Xid 79"


@pytest.mark.parametrize(("codes", "again"), [((0, 0), False), ((0, 1), True), ((0,), True)])
def test_a_job_that_slurm_lost_sight_of_and_that_ended_well_does_not_run_twice(
    run: RunFolder, codes: tuple[int, ...], again: bool
) -> None:
    """Its nodes worked on while slurmctld could not reach them, and had given the job back."""
    submitted_to_slurm(run, nodes=2)
    workers = [start(run, f"exit {code}", rank, 2) for rank, code in enumerate(codes)]
    assert [worker.wait(50) for worker in workers] == [0] * len(codes)
    start(run, "echo again", CK_RESTART_COUNT="1").wait(50)
    assert (result(run).exit_code, node_results.read_results(run).attempt) == (0, 1)
    assert ("again" in log(run)) is again


def test_an_attempt_that_was_given_a_notice_may_have_given_the_job_back_itself(
    run: RunFolder,
) -> None:
    submitted_to_slurm(run, nodes=1)
    leaves = "import signal, sys; signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0)); "
    leaves += "print('ready', flush=True); signal.pause()"
    worker = start(run, f'{sys.executable} -c "{leaves}"')
    wait_until(lambda: run.log(0).exists() and "ready" in log(run))
    worker.send_signal(signal.SIGUSR2)
    assert worker.wait(50) == 0
    start(run, "echo again", CK_RESTART_COUNT="1").wait(50)
    assert "again" in log(run)


def test_environment_reaches_the_command_unchanged(run: RunFolder) -> None:
    value = 'it\'s "two" lines\nwith $HOME `x` ü \\ ,a=b*?[!'
    start(run, 'printf %s "$ODD"', ODD=value).wait(50)
    assert log(run) == value


def test_secrets_come_from_the_private_file_alone(run: RunFolder) -> None:
    require("ps")
    runfolder.write_secrets(run, {"TOKEN": Secret("hush \"'\n ü")})
    assert run.secrets.stat().st_mode & 0o777 == 0o600
    process = start(run, 'printf %s "$TOKEN" | wc -c; sleep 1')
    wait_until(lambda: marked(run))
    listing = subprocess.run(
        ["ps", "axww", "-o", "args"], check=True, capture_output=True, text=True
    ).stdout
    process.wait(50)
    assert log(run).strip() == "11"
    assert "hush" not in listing


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_the_command_may_tidy_up(run: RunFolder, signum: int) -> None:
    body = 'trap "echo tidy; exit 7" TERM INT; echo ready; while :; do sleep 0.05; done'
    process = start(run, body)
    wait_until(lambda: run.log(0).exists() and "ready" in log(run))
    process.send_signal(signum)
    process.wait(50)
    assert log(run).splitlines()[-1] == "tidy"
    assert (result(run).exit_code, result(run).reason) == (7, "terminated")


def test_to_be_stopped_and_to_go_on_is_no_order_to_end(run: RunFolder) -> None:
    process = start(run, "echo ready; sleep 3; echo done")
    wait_until(lambda: run.log(0).exists() and "ready" in log(run))
    for _ in range(2):
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.8)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.2)
    process.wait(50)
    assert log(run).splitlines() == ["ready", "done"]
    assert (result(run).exit_code, result(run).reason) == (0, None)


def test_a_command_told_to_go_never_counts_as_success(run: RunFolder) -> None:
    process = start(run, 'trap "exit 0" TERM; echo ready; while :; do sleep 0.05; done')
    wait_until(lambda: run.log(0).exists() and "ready" in log(run))
    files.create_text(run.cancelled, "")
    process.terminate()
    process.wait(50)
    assert (result(run).exit_code, result(run).reason) == (143, "cancelled")


@pytest.mark.parametrize("leaves", ["exit 0", "exit 143"])
@pytest.mark.parametrize("others", ["peer", "peer, at the time limit", None])
def test_srun_that_ends_the_node_to_blame_takes_no_blame_from_it(
    run: RunFolder, leaves: str, others: str | None
) -> None:
    body = f'trap "{leaves}" TERM; echo the loss is NaN; while :; do sleep 0.05; done'
    process = start(run, body, rank=1, nodes=2)
    wait_until(lambda: run.log(1).exists() and "NaN" in log(run, 1))
    told = {"node": "node-1", "rank": 3, "exit_code": 5}
    files.write_json(run.rank_failure(0), told)
    if others is not None:
        head = NodeResult(
            node_rank=0, node="node-0", exit_code=5, started_at=1.0, ended_at=2.0, reason="peer"
        )
        node_results.write_result(run, head, attempt=0, n_nodes=2)
    if others == "peer, at the time limit":
        run.timeout(0).touch()
    process.terminate()
    process.wait(50)
    ended, first = result(run, 1), node_results.first_failure(run, 0)
    if others is None:  # somebody else ends all of them
        assert (ended.exit_code, ended.reason, first) == (143, "terminated", None)
    elif others != "peer":
        assert (ended.reason, first) == ("timeout", None)
    else:
        assert (ended.exit_code, ended.reason, ended.rank) == (5, None, 3)
        assert first is not None
        assert (first.node, first.tail) == ("node-1", ("the loss is NaN",))


def test_who_ignores_sigterm_is_killed_after_the_grace(run: RunFolder) -> None:
    process = start(run, 'trap "" TERM; echo ready; sleep 100')
    wait_until(lambda: run.log(0).exists() and "ready" in log(run))
    began = time.monotonic()
    process.terminate()
    process.wait(60)  # by itself it ends later
    assert time.monotonic() - began > 3.9
    assert result(run).exit_code == 137


LEFTOVERS = [
    pytest.param("setsid NAP & ", id="session of its own"),
    pytest.param("( setsid setsid bash -c 'trap \"\" TERM HUP; NAP' & ) ; ", id="daemon"),
    pytest.param("env -i setsid NAP & ", id="cleared environment"),
    pytest.param("( env -i setsid bash -c 'NAP & NAP' & ) ; ", id="cleared daemon"),
    pytest.param("nohup NAP >/dev/null 2>&1 & disown; ", id="nohup"),
]


@pytest.mark.parametrize("leave", LEFTOVERS)
def test_nothing_is_left_when_the_command_ends(run: RunFolder, leave: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    nap = f"sleep 100.{int(run.key, 16)}"
    process = start(
        run, f"{leave.replace('NAP', nap)} until [[ -e {go} ]]; do sleep 0.05; done; exit 4"
    )
    wait_until(lambda: running(nap))
    go.touch()
    process.wait(50)
    assert result(run).exit_code == 4
    assert not running(nap)


def running(command: str) -> set[int]:
    """Return the processes with this command line; the environment is of no use here."""
    wanted = command.replace(" ", "\0").encode() + b"\0"
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == wanted:
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("leave", ["", "setsid sleep 100 & ", "( setsid sleep 100 & ) ; "])
def test_a_killed_worker_leaves_nothing(run: RunFolder, leave: str) -> None:
    process = start(run, f"{leave} echo ready; sleep 100")
    wait_until(lambda: run.log(0).exists() and "ready" in log(run))
    process.kill()
    process.wait()
    wait_until(lambda: not marked(run))


CATCHER = """
import signal, sys, time
def caught(signum, frame):
    print("caught", flush=True)
    sys.exit(9)
signal.signal(signal.SIGUSR2, caught)
print("ready", flush=True)
time.sleep(60)
"""


def test_the_notice_reaches_only_who_has_a_handler(run: RunFolder, tmp_path: Path) -> None:
    script = tmp_path / "catcher.py"
    script.write_text(CATCHER)
    body = f"sleep 100 & setsid {sys.executable} {script}; code=$?; jobs -r; exit $code"
    process = start(run, body)
    wait_until(lambda: run.log(0).exists() and "ready" in log(run))
    process.send_signal(signal.SIGUSR2)
    process.wait(50)
    assert "caught" in log(run)
    assert "Running" in log(run), "the sleep without a handler must have lived on"
    assert (result(run).exit_code, result(run).reason) == (9, None)


def test_the_notice_that_the_batch_script_was_given_reaches_only_who_has_a_handler(
    run: RunFolder, tmp_path: Path
) -> None:
    script = tmp_path / "catcher.py"
    script.write_text(CATCHER)
    deaf = f"{sys.executable} -c 'import signal, time; signal.signal(12, signal.SIG_DFL); "
    body = f"{deaf}time.sleep(100)' & {sys.executable} {script}; code=$?; jobs -r; exit $code"
    process = start(run, body, SLURM_JOB_ID="7", SLURM_STEP_ID="0")
    wait_until(lambda: run.log(0).exists() and "ready" in log(run))
    run.usr2(1).touch()  # of another attempt
    run.usr2(0).touch()
    process.wait(50)
    assert "caught" in log(run)
    assert "Running" in log(run), "who has no handler must have lived on"
    assert (result(run).exit_code, result(run).noticed) == (9, True)


def test_the_notice_does_no_harm_where_slurm_sends_it_to_everybody(
    run: RunFolder, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    process = start(run, f"cat {go} & echo ready; wait; echo done")
    wait_until(lambda: run.log(0).exists() and "ready" in log(run))
    with go.open("w"):  # once cat has opened it, which ends with it
        for pid in marked(run):
            os.kill(pid, signal.SIGUSR2)
    process.wait(50)
    assert result(run).exit_code == 0
    assert "done" in log(run)


@pytest.mark.parametrize("early", [False, True], ids=["as-bash-starts", "before-the-command"])
def test_a_notice_is_deadly_to_nothing_that_is_only_starting(
    run: RunFolder, tmp_path: Path, early: bool
) -> None:
    """And one that came before is not lost: the attempt was told of its end."""
    submitted_to_slurm(run, nodes=1)
    bash = tmp_path / "bin/bash"
    bash.parent.mkdir()
    bash.write_text('#!/bin/sh\nkill -USR2 $$\nexec /bin/bash "$@"\n')
    bash.chmod(0o755)
    code = ""
    if early:
        code = "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}); "
        code += "os.kill(os.getpid(), signal.SIGUSR2)"
    path = f"{bash.parent}:{os.environ['PATH']}" if not early else os.environ["PATH"]
    start(run, "sleep 0.5; echo done", code=code, PATH=path).wait(50)
    assert (log(run), result(run).exit_code) == ("done\n", 0)
    assert result(run).noticed == early


def test_a_hanging_node_ends_with_the_code_of_the_one_that_failed(run: RunFolder) -> None:
    waiting = start(run, "echo ready; sleep 100", rank=0, nodes=2)
    wait_until(lambda: run.log(0).exists() and "ready" in log(run))
    failing = start(run, "exit 5", rank=1, nodes=2)
    failing.wait(50)
    waiting.wait(60)  # by itself it ends later
    assert (result(run, 0).exit_code, result(run, 0).reason) == (5, "peer")
    assert (result(run, 1).exit_code, result(run, 1).reason) == (5, None)
    first = node_results.first_failure(run, 0)
    assert first is not None
    assert first.node_rank == 1


def test_a_failure_of_an_earlier_attempt_counts_no_more(run: RunFolder) -> None:
    start(run, "exit 5", rank=1, nodes=2).wait(50)
    start(run, "sleep 1", rank=0, nodes=2, CK_RESTART_COUNT="1").wait(50)
    assert result(run, 0).exit_code == 0


def test_nodes_on_one_machine_do_not_end_each_other(run: RunFolder) -> None:
    waits = 'until [[ -e "$CK_RESULTS/go" ]]; do sleep 0.1; done'
    body = f"[[ $CK_NODE_RANK = 0 ]] || {{ echo ready; {waits}; echo done; }}"
    other = start(run, body, rank=1, nodes=2)
    wait_until(lambda: run.log(1).exists() and "ready" in log(run, 1))
    start(run, body, rank=0, nodes=2).wait(50)
    (run.results / "go").touch()
    other.wait(50)
    assert "done" in log(run, 1)


def test_much_output_costs_the_worker_nothing(run: RunFolder) -> None:
    """Commands write to the log themselves: what they print passes through nothing else."""
    start(run, "readlink /proc/self/fd/1 /proc/self/fd/2; head -c 20M /dev/zero").wait(60)
    first, second, rest = run.log(0).read_bytes().split(b"\n", 2)
    assert first == second == str(run.log(0)).encode()
    assert len(rest) == 20 * 1024**2


def test_identity_names_what_is_missing() -> None:
    with pytest.raises(UserError, match="CK_JOB_ID, CK_NODES missing"):
        Identity.from_environment({"CK_RESTART_COUNT": "0", "CK_NODE_RANK": "0"})
    with pytest.raises(UserError, match="rank 4 of node-0"):
        Identity.from_environment({**environment(), "CK_NODE_RANK": "4"})


def run_module(run: RunFolder, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m clusterkit.executors.node` as the executors do."""
    variables = {
        **os.environ,
        **environment(),
        "SUBMITIT_EXECUTOR": "local",
        "SUBMITIT_LOCAL_JOB_ID": "77",
        **env,
    }
    return subprocess.run(
        [sys.executable, "-m", "clusterkit.executors.node", str(run.path)],
        env=variables,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def pickle_task(run: RunFolder, name: str) -> None:
    from submitit.core.utils import DelayedSubmission  # noqa: PLC0415

    DelayedSubmission(LaunchTask(str(run.path))).dump(run.submitit / name)


@pytest.mark.parametrize("name", ["0123abcd.pkl", "77_submitted.pkl"])
def test_the_module_adopts_what_the_client_left_and_exits_with_the_code(
    run: RunFolder, name: str
) -> None:
    files.write_json(
        run.submission,
        {
            "run_id": run.run_id, "name": "toy", "cluster": "c", "kind": "slurm", "job_id": None,
            "framework": "torchrun", "nodes": 1, "tasks": 1, "submitted_at": 1.0,
        },
    )  # fmt: skip
    pickle_task(run, name)
    files.write_text(run.path / "node.sh", "exit 6\n")
    done = run_module(run, CK_JOB_ID="77")
    assert done.returncode == 6, done.stderr
    submission = runfolder.read_submission(run)
    assert submission is not None
    assert submission.job_id == "77"
    outcome, value = cloudpickle.loads((run.submitit / "77_0_result.pkl").read_bytes())
    assert (outcome, value) == ("success", result(run))


def test_the_module_says_what_is_wrong_outside_of_a_job(run: RunFolder) -> None:
    done = run_module(run, CK_JOB_ID="")
    assert done.returncode == 2
    assert "CK_JOB_ID missing" in done.stderr
    assert "Traceback" not in done.stderr


def test_results_are_json_a_person_can_read(run: RunFolder) -> None:
    start(run, "exit 3").wait(50)
    document = json.loads(run.result(0).read_text())
    assert document["exit_code"] == 3
    assert document["node"] == "node-0"
    assert document["attempt"] == 0


def test_a_controller_that_does_not_answer_is_asked_for_the_requeue_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    def answer(command: Sequence[str], **_: object) -> Answer:
        asked.append(command)
        errors = "slurm_requeue error: Socket timed out on send/recv operation"
        return Answer(code=0) if len(asked) == 2 else Answer(code=1, errors=errors)

    monkeypatch.setattr(watch, "run_command", answer)
    monkeypatch.setattr(watch, "_AGAIN_AFTER_S", (0.0, 0.0))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    run = runfolder.create(make_cluster(tmp_path), "toy")
    me = Identity(job_id="7", rank=0, name="n1", of=1, attempt=0, among=("n1",))
    watch.requeue(run, me, "time limit")
    assert asked == [["scontrol", "requeue", "7"]] * 2
    watch.requeue(run, me, "time limit")  # another node, or this one, has
    assert len(asked) == 2


def test_on_slurm_a_node_waits_for_one_that_looks_at_itself_before_it_ends(run: RunFolder) -> None:
    """For srun ends that one then, and Slurm kills it some seconds later, without a result."""
    submitted_to_slurm(run, nodes=2)
    looks = "from clusterkit.executors.node import task; task.why_broken = lambda *_: {}"
    waiting = start(run, "echo ready; sleep 300", 1, 2, looks.format("'Xid 79'"), SLURM_JOB_ID="7")
    wait_until(lambda: run.log(1).exists() and "ready" in log(run, 1))
    failing = start(run, "exit 5", 0, 2, looks.format("None"), SLURM_JOB_ID="7")
    waiting.send_signal(signal.SIGSTOP)
    wait_until(lambda: node_results.has_result(run, 0, 0))
    time.sleep(1)
    assert failing.poll() is None
    waiting.send_signal(signal.SIGCONT)
    assert (failing.wait(50), waiting.wait(50)) == (0, 0)
    assert (result(run, 1).reason, result(run, 1).fault) == ("peer", "Xid 79")
