"""`clusterkit diagnose`: of jobs and of files, for people and as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from clusterkit.cli.diagnose.report import why_failed
from clusterkit.cli.frame.main import app
from clusterkit.core import files
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import ClusterKind, JobState, JobStatus, NodeResult
from clusterkit.executors.local.executor import LocalExecutor
from clusterkit.executors.run import hangs, node_results, runfolder
from clusterkit.executors.run.dependencies import Condition, Dependency
from clusterkit.executors.run.hangs import Hang
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.jobs.state.load import load_job
from clusterkit.observe.diagnose.job import advise
from tests.helpers.plans import make_cluster, make_plan

MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 79.10 GiB of which 1.31 GiB is free."
)
TRACEBACK = f"""\
step 6
[rank3]: Traceback (most recent call last):
[rank3]:   File "train.py", line 9, in <module>
[rank3]: {MEMORY}
"""


def told(*words: object) -> Result:
    return CliRunner().invoke(app, ["diagnose", *map(str, words)])


def job(folder: Path, *, state: JobState = JobState.FAILED, **changes: Any) -> RunFolder:
    """Write the run folder of a job of two nodes that has ended."""
    cluster = make_cluster(folder, gpu_type="h100")
    run = runfolder.create(cluster, "toy")
    submission = Submission(
        run_id=run.run_id, name="toy", cluster="local", kind=ClusterKind.LOCAL,
        framework="torchrun", nodes=2, tasks=2, submitted_at=1.0, job_id="local-1",
    )  # fmt: skip
    plan = make_plan(cluster, processes=4, slots=(2, 2), args=changes.pop("args", ()))
    files.write_json(run.plan, files.plain(plan))
    failed = NodeResult(node_rank=1, node="n2", exit_code=1, started_at=1.0, ended_at=9.0, rank=3)
    failed = dataclasses.replace(failed, **changes)
    if state is not JobState.SUCCEEDED:
        node_results.write_result(run, failed, attempt=0, n_nodes=2)
    status = JobStatus(state=state, exit_code=1, nodes=("n1", "n2"))
    runfolder.write_submission(run, submission)
    runfolder.write_state(run, submission, status)
    return run


def test_what_where_and_what_to_do_then_the_evidence(tmp_path: Path) -> None:
    run = job(tmp_path)
    run.log(0).write_text("step 6\n[rank0]: RuntimeError: Connection closed by peer [::1]:1\n")
    run.log(1).write_text(TRACEBACK)
    answer = told(run.path)
    assert answer.exit_code == 1
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("what   a GPU ran out of memory")
    where = next(line for line in lines if line.startswith("where"))
    assert where == "where  n2 rank 3"
    assert any(line.startswith("do     ") for line in lines)
    assert f"{run.log(1)}:4" in answer.stdout
    assert "  | Traceback (most recent call last):" in lines
    assert any(line.startswith(("then", "also")) and "rank 0: " in line for line in lines)
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80
    assert "$ clusterkit estimate --model MODEL --gpu h100 --gpus 4" in answer.stdout


@pytest.mark.parametrize(
    ("frame", "where"),
    [
        ("stuck (train.py:23)", "where  n2 rank 1, "),
        ("all_reduce (torch/distributed/distributed_c10d.py:2501)", "where  the job, "),
    ],
)
def test_a_hang_is_where_others_wait_for_and_told_once(
    tmp_path: Path, frame: str, where: str
) -> None:
    hang = Hang(node="n1", node_rank=0, at=9.0, silent_s=9, patience_s=4, by="steps", step=6)
    run = job(tmp_path, node_rank=0, node="n1", rank=None, exit_code=hangs.HUNG, hung=hang.text)
    hangs.note(run, 0, hang)
    for rank, at in enumerate(("_engine_run_backward (torch/autograd/graph.py:841)", frame)):
        stack = f'@ 4711 {rank} n{rank + 1}\nThread 4711 (idle): "MainThread"\n    {at}\n'
        hangs.keep(run, 0, hangs.stacks_file(run, 0, rank), stack)
    (run.submitit / "4711.out").write_text("srun: error: n1: task 0: Exited with exit code 124\n")
    answer = told(run.path)
    assert where in answer.stdout
    assert "rank 0 is in _engine_run_backward" in " ".join(answer.stdout.split())
    assert "hung=" not in answer.stdout


def test_of_ranks_whose_peer_left_early_that_one_is_told(tmp_path: Path) -> None:
    lost = "RuntimeError: Connection closed by peer [::1]:1"
    run = job(tmp_path, node_rank=0, node="n1", rank=0, exit_code=1, ended_before="rank 3 on n2")
    run.log(0).write_text(f"step 6\n[rank0]: {lost}\n")
    said = told(run.path).stdout
    assert said.startswith("what   rank 3 ended before the others, with exit code 0")
    assert re.search(r"^where  n2", said, re.MULTILINE)
    assert "rank 0: the connection to another rank was lost" in said
    # But what a rank has raised by itself has ended the job.
    run.log(0).write_text("step 6\n[rank0]: ValueError: bad lr\n")
    assert told(run.path).stdout.startswith("what   the script raised ValueError")


def test_one_document_with_all_of_it(tmp_path: Path) -> None:
    run = job(tmp_path)
    run.log(0).write_text("step 6\n")
    run.log(1).write_text(TRACEBACK)
    answer = told(run.path, "--json")
    assert answer.exit_code == 1
    document = json.loads(answer.stdout)
    assert document["schema"] == 1
    assert document["job"]["state"] == "failed"
    cause = document["cause"]
    assert (cause["rule"], cause["node"], cause["rank"]) == ("cuda-out-of-memory", "n2", 3)
    assert cause["evidence"]["line"] == 4
    assert cause["evidence"]["text"] == MEMORY
    assert document["advice"]["answer"] is None
    assert (document["files"], document["found"]) == (2, True)


@pytest.mark.parametrize(
    ("end", "hardware"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered\n", True),
        ("CUDA error: uncorrectable ECC error encountered\nstep 8\nstep 9\nstep 10\n", False),
        ("ValueError: no such column\n", False),
    ],
)
def test_the_hardware_is_to_blame_for_what_ended_the_run_alone(
    tmp_path: Path, end: str, hardware: bool
) -> None:
    """And the step is that of the last attempt."""
    log = tmp_path / "x.log"
    log.write_text(f"step 900\n--- clusterkit: restart 1 on n1, now\nstep 0\n{end}")
    document = json.loads(told(log, "--json").stdout)
    assert document["cause"]["hardware"] is hardware
    assert document["step"] == (10 if "step" in end else 0)


def test_missing_logs_are_told_and_the_kept_words_stand_in(tmp_path: Path) -> None:
    run = job(tmp_path, tail=(MEMORY,))
    run.log(0).write_text("step 6\n")
    answer = told(run.path)
    assert answer.stdout.startswith("what   a GPU ran out of memory")
    assert "where  n2 rank 3" in answer.stdout
    assert f"no output of n2: {run.logs} has none" in " ".join(answer.stderr.split())


def test_a_number_that_the_job_has_no_rank_for_is_none(tmp_path: Path) -> None:
    run = job(tmp_path)
    run.log(0).write_text("step 6\n")
    run.log(1).write_text(f"2: x\n2: y\n100: {MEMORY}\n")
    assert "where  n2 rank 3" in told(run.path).stdout, "the plan has four"


def test_a_failure_that_no_rule_knows_is_still_one(tmp_path: Path) -> None:
    run = job(tmp_path, exit_code=7, tail=("all is lost",))
    run.log(1).write_text("all is lost\n")
    run.log(0).write_text("step 6\n")
    answer = told(run.path)
    assert answer.exit_code == 1
    assert any("  | all is lost" in line for line in answer.stdout.splitlines())


def test_a_job_that_succeeded_has_no_failure(tmp_path: Path) -> None:
    run = job(tmp_path, state=JobState.SUCCEEDED)
    run.log(0).write_text(TRACEBACK)
    run.log(1).write_text("done\n")
    answer = told(run.path)
    assert answer.exit_code == 0
    assert "no failure known" in answer.stdout
    assert json.loads(told(run.path, "--json").stdout)["cause"] is None


def test_of_a_cancelled_job_nothing_is_wrong_unless_it_failed_too(tmp_path: Path) -> None:
    run = job(tmp_path, state=JobState.CANCELLED, exit_code=143)
    run.log(1).write_text("step 6\n")
    answer = told(run.path)
    assert (answer.exit_code, "somebody cancelled the job" in answer.stdout) == (0, True)
    run.log(1).write_text(TRACEBACK)
    assert told(run.path).exit_code == 1


def test_who_was_killed_at_the_time_limit_did_not_fail_first(tmp_path: Path) -> None:
    killed = "slurm_script: line 12: 12345 Killed                  python train.py\n"
    run = job(tmp_path, state=JobState.TIMEOUT, exit_code=137)
    run.log(1).write_text(killed)
    assert told(run.path).stdout.startswith("what   the job reached its time limit")
    run.log(1).write_text(killed + TRACEBACK)
    assert told(run.path).stdout.startswith("what   a GPU ran out of memory")


@pytest.mark.parametrize(
    ("code", "words"),
    [(137, "SIGKILL"), (152, "signal 24"), (192, "signal 64"), (193, "code 193"), (255, "code 255"),
     (128, "code 128")],
)  # fmt: skip
def test_not_every_large_exit_code_is_a_signal(tmp_path: Path, code: int, words: str) -> None:
    run = job(tmp_path, exit_code=code)
    run.log(1).write_text("step 6\n")
    assert words in told(run.path).stdout


def test_logs_that_cannot_be_fetched_are_told_and_what_is_here_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = job(tmp_path)
    run.log(1).write_text(TRACEBACK)
    run.state.unlink()

    def gone(self: object, run: RunFolder) -> None:
        raise RemoteError("n2 does not answer")

    monkeypatch.setattr(LocalExecutor, "fetch", gone)
    answer = told(run.path)
    assert "where  n2 rank 3" in answer.stdout
    assert "could not be fetched: n2 does not answer" in " ".join(answer.stderr.split())


def test_of_a_job_that_succeeded_nobody_has_to_print(tmp_path: Path) -> None:
    run = job(tmp_path, state=JobState.SUCCEEDED)
    run.log(0).write_text("step 6\n")
    assert told(run.path).stderr.count("no output") == 0
    assert json.loads(told(run.path, "--json").stdout)["notes"] == []


def test_a_job_that_has_printed_nothing_yet(tmp_path: Path) -> None:
    run = job(tmp_path, state=JobState.SUCCEEDED)
    answer = told(run.path)
    assert (answer.exit_code, "no output yet" in answer.stdout) == (0, True)


def test_the_place_is_told_where_only_another_line_names_it(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n"
        "srun: error: n2: task 1: Out Of Memory\n"
    )
    assert "\nwhere  n2\n" in told(log).stdout


def test_files_folders_and_stdin(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "x.log"
    log.parent.mkdir()
    log.write_text(TRACEBACK)
    for word in (log, log.parent):
        assert told(word).exit_code == 1
    (tmp_path / "fine.txt").write_text("step 1\n")
    assert told(tmp_path / "fine.txt").exit_code == 0
    assert told(tmp_path / "fine.txt", log).exit_code == 1
    argv = [sys.executable, "-m", "clusterkit", "diagnose"]
    piped = subprocess.run(
        [*argv, "-"], input=TRACEBACK, text=True, capture_output=True, check=False
    )
    assert (piped.returncode, "where  rank 3" in piped.stdout) == (1, True), piped.stderr
    assert "\n-:4\n" in piped.stdout
    with log.open("rb") as stream:
        whole = subprocess.run(
            [*argv, "-"], stdin=stream, text=True, capture_output=True, check=False
        )
    assert whole.stdout.count("where  rank 3") == 1, whole.stderr
    assert f"{log}:4" in whole.stdout, "another process can open that"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_what_was_piped_in_is_not_left_behind(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "clusterkit", "diagnose", "-"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
    ) as client:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/*.log")):
            assert time.monotonic() < deadline, "it never read"
            time.sleep(0.05)
        client.send_signal(number)
    assert client.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_finds_no_failure(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(TRACEBACK)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "clusterkit", "diagnose", "a.log"],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (2, "")


def test_an_empty_word_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.log").write_text(TRACEBACK)
    monkeypatch.chdir(tmp_path)
    for words in ([""], ["a.log", ""]):
        with pytest.raises(UserError, match="an empty word names no job and no file"):
            CliRunner().invoke(app, ["diagnose", *words], catch_exceptions=False)


def test_pipes_of_one_name_and_stdin_twice(tmp_path: Path) -> None:
    texts = {"a": TRACEBACK, "b": "step 1\n"}
    writers = []
    for folder, text in texts.items():
        pipe = tmp_path / folder / "log"
        pipe.parent.mkdir()
        os.mkfifo(pipe)
        writers.append(threading.Thread(target=pipe.write_text, args=(text,), daemon=True))
        writers[-1].start()
    answer = told(*(tmp_path / folder / "log" for folder in texts), "--json")
    found = json.loads(answer.stdout)
    assert found["files"] == 2
    assert found["cause"]["evidence"]["file"] == str(tmp_path / "a" / "log")
    argv = [sys.executable, "-m", "clusterkit", "diagnose", "-", "-"]
    twice = subprocess.run(argv, input=TRACEBACK, text=True, capture_output=True, check=False)
    assert (twice.returncode, "where  rank 3" in twice.stdout) == (1, True), twice.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "diagnose what?"),
        (("no/such.log",), "there is no file no/such.log"),
        (("missing.log",), "there is no file missing.log"),
        (("no-such-job",), "no job 'no-such-job'"),
        (("latest", "other"), "one job at a time"),
        (("--rules", "/nowhere", "x"), "/nowhere holds no rules"),
        (("{tmp}",), "holds no logs"),
        (("x" * 5000,), "cannot be read: [Errno 36]"),
    ],
)
def test_what_cannot_be_done_says_why(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    answer = told(*(word.format(tmp=tmp_path) for word in words))
    assert answer.exit_code != 0
    assert message in str(answer.exception)


def test_a_word_that_may_have_been_a_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rank-0.txt").write_text("step 1\n")
    monkeypatch.chdir(tmp_path)
    said = str(told("rank-0.tx").exception)
    assert "no file of that name" in said
    assert "did you mean 'rank-0.txt'?" in said


def test_a_folder_of_rules_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "coffee.yaml").write_text(
        "title: the {machine} is out of coffee\nrole: cause\nneeds: [out of coffee]\n"
        "patterns: ['(?P<machine>\\w+): out of coffee']\nsays: Nobody works.\ndo: Buy some.\n"
        "source: us\nexamples: ['x: out of coffee']\nhealthy: [tea]\n"
    )
    (tmp_path / "x.log").write_text("jura: out of coffee\n")
    answer = told("--rules", tmp_path / "r", tmp_path / "x.log")
    assert "what   the jura is out of coffee. Nobody works." in answer.stdout
    assert told(tmp_path / "x.log").exit_code == 0
    listed = told("--rules", tmp_path / "r", "--list-rules").stdout
    assert "the MACHINE is out of coffee (cause)" in " ".join(listed.split())
    names = [r["id"] for r in json.loads(told("--list-rules", "--json").stdout)["rules"]]
    assert "cuda-out-of-memory" in names


def test_who_waits_for_a_job_reads_why_it_failed_once(tmp_path: Path) -> None:
    run = job(tmp_path, tail=(MEMORY,))
    run.log(0).write_text("step 6\n")
    run.log(1).write_text(TRACEBACK)
    lines = why_failed(load_job(run))
    assert sum("CUDA out of memory" in line for line in lines) == 1
    assert [line[:5] for line in lines if line[:4] in {"what", "wher", "do  "}] == [
        "what ",
        "where",
        "do   ",
    ]
    run = job(tmp_path, tail=("ValueError: x",))
    run.log(1).write_text("ValueError: x\n")
    lines = why_failed(load_job(run))
    assert "| ValueError: x" in lines[0]
    assert [line.split()[0] for line in lines[1:] if line[0] != " "] == ["what", "where", "do"]


@pytest.mark.parametrize("label", ["", "[rank3]: "])
def test_an_error_with_a_long_path_is_told_once(tmp_path: Path, label: str) -> None:
    """The path does not fit on the first row of the last words, and begins a row of its own."""
    error = f"FileNotFoundError: [Errno 2] No such file or directory: '/data/{'sets/' * 8}x.pt'"
    run = job(tmp_path, tail=("Traceback (most recent call last):", error))
    run.log(1).write_text(f"{label}Traceback (most recent call last):\n{label}{error}\n")
    lines = why_failed(load_job(run))
    assert sum("FileNotFoundError" in line for line in lines) == 1, lines


def test_the_estimator_is_asked_what_the_plan_tells(tmp_path: Path) -> None:
    args = ("--model", "llama-3.1-70b", "--per_device_train_batch_size=2", "--lr", "1")
    advice = advise(job(tmp_path, args=args))
    assert advice is not None
    assert advice.command == (
        "clusterkit estimate --model llama-3.1-70b --gpu h100 --gpus 4 --gpus-per-node 2 "
        "--micro-batch 2"
    )
    assert advice.answer
    unknown = advise(job(tmp_path, args=("--model", "mine.py:make")))
    assert unknown is not None
    assert unknown.answer is None


@pytest.mark.parametrize("by", ["steps", "heartbeat", "activity"])
def test_a_job_that_hung_until_its_time_limit_was_ended_by_that(tmp_path: Path, by: str) -> None:
    """And nobody had cancelled it, whatever srun says as it ends the step."""
    hang = Hang(node="n1", node_rank=0, at=9.0, silent_s=900, patience_s=300, by=by, step=6)
    run = job(tmp_path, state=JobState.TIMEOUT, exit_code=143)
    hangs.note(run, 0, hang)
    run.log(1).write_text("step 6\n")
    (run.submitit / "4711.out").write_text(
        "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-29T22:54:02 ***\n"
        "slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-29T22:54:02 DUE TO TIME "
        "LIMIT ***\nsrun: forcing job termination\n"
    )
    said = " ".join(told(run.path).stdout.split())
    assert said.startswith("what the job reached its time limit. ")
    assert f"over; before that it hung: {hang.what}. where" in said
    assert "also the job made no progress any more" in said
    assert "somebody cancelled" not in said


@pytest.mark.parametrize(("silent_s", "told_so"), [(544.0, True), (20.0, False)])
def test_a_time_limit_tells_when_the_last_line_came(
    tmp_path: Path, silent_s: float, told_so: bool
) -> None:
    run = job(tmp_path, state=JobState.TIMEOUT, exit_code=143)
    submission = runfolder.read_submission(run)
    assert submission is not None
    for rank in (0, 1):
        run.log(rank).write_text("step 6\n")
        os.utime(run.log(rank), (0.0, 5000.0 - silent_s - 99.0 * rank))
    run.state.unlink()
    status = JobStatus(state=JobState.TIMEOUT, exit_code=143, started_at=1.0, ended_at=5000.0)
    runfolder.write_state(run, submission, status)
    said = " ".join(told(run.path).stdout.split())
    assert said.startswith("what the job reached its time limit. ")
    assert ("time was over; its last line came 9:04 min before. where" in said) is told_so
    assert ("its last line" in said) is told_so


@pytest.mark.parametrize("kept", ["by `clusterkit cancel`", ""])
def test_a_job_that_clusterkit_cancel_ended_says_so(tmp_path: Path, kept: str) -> None:
    run = job(tmp_path, state=JobState.CANCELLED, exit_code=143)
    run.cancelled.write_text(kept)
    run.log(1).write_text("step 6\n")
    (run.submitit / "4711.out").write_text(
        "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-29T22:54:02 ***\n"
        "srun: forcing job termination\n"
    )
    said = " ".join(told(run.path).stdout.split())
    how = kept or "by Ctrl-C, by scancel, by `clusterkit cancel`, or by an administrator"
    assert said.startswith(f"what somebody cancelled the job. The job was ended {how}. ")


def test_a_job_cancelled_after_its_limit_had_ended_an_attempt_was_cancelled(tmp_path: Path) -> None:
    run = job(tmp_path, state=JobState.CANCELLED, exit_code=143)
    run.log(1).write_text(
        "*** JOB 7 ON n1 CANCELLED AT 2026-11-29T22:54:02 DUE TO TIME LIMIT ***\n"
    )
    assert "somebody cancelled the job" in told(run.path).stdout


@pytest.mark.parametrize(
    ("state", "how"), [(JobState.FAILED, "failed"), (JobState.TIMEOUT, "reached its time limit")]
)
def test_a_job_whose_predecessor_failed_names_it_and_what_to_type(
    tmp_path: Path, state: JobState, how: str
) -> None:
    run = job(tmp_path, state=JobState.SUCCEEDED)  # without a result: it never ran
    before = Dependency(run_dir=str(tmp_path / "before"), job_id="4711", ending=Condition.OK)
    submission = runfolder.read_submission(run)
    assert submission is not None
    status = JobStatus(state=JobState.CANCELLED, reason=before.why_never(state))
    run.state.unlink()
    runfolder.write_state(run, submission, status)
    answer = told(run.path)
    said = " ".join(answer.stdout.split())
    assert said.startswith(f"what the job never started: 4711, which it was to run after, {how}. ")
    assert "`clusterkit diagnose 4711` says how" in said
    assert "`clusterkit rerun local-1 --after NEW`" in said
    assert ("somebody cancelled" in said, answer.exit_code) == (False, 1)
    assert "no output of" not in answer.stderr


def test_the_last_of_a_chain_names_the_first_that_failed_and_each_to_be_run_again(
    tmp_path: Path,
) -> None:
    names = ["54", "55", "56", "57"]
    runs: list[RunFolder] = []
    for name in names:
        (tmp_path / name).mkdir()
        run = job(tmp_path / name, state=JobState.FAILED if name == "54" else JobState.CANCELLED)
        submission = runfolder.read_submission(run)
        assert submission is not None
        after: tuple[Dependency, ...] = ()
        status = JobStatus(state=JobState.FAILED, exit_code=3)
        if runs:
            before = names[len(runs) - 1]
            after = (Dependency(run_dir=str(runs[-1].path), job_id=before, ending=Condition.OK),)
            how = JobState.FAILED if before == "54" else JobState.CANCELLED
            status = JobStatus(state=JobState.CANCELLED, reason=after[0].why_never(how))
        submission = dataclasses.replace(submission, job_id=name, after=after)
        run.state.unlink(missing_ok=True)
        runfolder.write_submission(run, submission)
        runfolder.write_state(run, submission, status)
        runs.append(run)
    said = " ".join(told(runs[-1].path).stdout.split())
    assert said.startswith("what the job never started: 54, which it was to run after, failed. ")
    assert "Nobody cancelled 57 itself" in said
    assert (
        "`clusterkit diagnose 54` says how that ended. Then `clusterkit rerun 54`, "
        "`clusterkit rerun 55 --after NEW`, `clusterkit rerun 56 --after NEW`, and "
        "`clusterkit rerun 57 --after NEW` with the id"
    ) in said
