"""Jobs that run after others: what `--after` means, and jobs of this machine that are held."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from clusterkit.core import files, processes
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterKind, JobState, JobStatus
from clusterkit.executors import SchedulerState, submit_plan
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.dependencies import (
    Condition,
    Dependencies,
    Dependency,
    parse_after,
    sbatch_dependency,
    waiting_for,
)
from clusterkit.executors.run.node_results import Results
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.slurm.states import parse_squeue
from clusterkit.jobs.dependencies import conditions
from clusterkit.jobs.find import find_run, find_runs
from clusterkit.jobs.start_queued import is_queued, start_due
from clusterkit.jobs.state.conclude import Evidence, explained
from clusterkit.jobs.state.load import Job, load_job, states_of
from clusterkit.jobs.watch import cancel, cancel_all, wait, wait_for_all
from tests.helpers.plans import make_cluster, make_plan, node_script
from tests.unit.jobs.test_jobs import make_run

NEVER = "7 failed, and it was to run after its success"


def after(
    job: str = "7", ending: Condition = Condition.OK, run: RunFolder | None = None
) -> Dependency:
    return Dependency(run_dir=str(run.path) if run else "/nowhere", job_id=job, ending=ending)


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("17", ("17", Condition.OK)),
        ("17:any", ("17", Condition.ANY)),
        ("array-0a1b2c:fail", ("array-0a1b2c", Condition.FAIL)),
        ("/runs/a:b/toy", ("/runs/a:b/toy", Condition.OK)),
    ],
)
def test_the_word_names_a_job_and_an_ending(word: str, read: tuple[str, Condition]) -> None:
    assert parse_after(word) == read


@pytest.mark.parametrize(
    ("word", "hint"), [("17:done", "--after 17:ok, 17:fail or 17:any"), (":ok", "--after JOB")]
)
def test_words_that_name_none(word: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_after(word)
    assert hint in (caught.value.problems[0].hint or "")


@pytest.mark.parametrize("state", list(JobState))
def test_only_a_final_state_decides(state: JobState) -> None:
    held = {ending: after(ending=ending).is_met(state) for ending in Condition}
    if not state.final:
        assert set(held.values()) == {None}
    else:
        good = state is JobState.SUCCEEDED
        assert held == {Condition.OK: good, Condition.ANY: True, Condition.FAIL: not good}


def test_slurm_is_told_in_its_own_words() -> None:
    conditions = [
        after("7"),
        after("8"),
        after("9", Condition.ANY),
        after("7"),
        after("5", Condition.FAIL),
    ]
    assert sbatch_dependency(conditions) == {
        "dependency": "afterok:7:8,afterany:9,afternotok:5",
        "kill-on-invalid-dep": "yes",
    }
    assert sbatch_dependency([]) == {}
    many = [after(str(n)) for n in (1, 1, 2, 3, 4, 5)]
    assert waiting_for(many) == "after 1, 2 and 3 more have succeeded"
    assert waiting_for([after("4", Condition.FAIL)]) == "after 4 has failed"
    assert waiting_for([after("4", Condition.ANY)]) == "after 4 has ended"
    assert waiting_for([after("4"), after("5", Condition.ANY)]) == "after 4:ok, 5:any"


def test_conditions_stand_in_the_submission(tmp_path: Path) -> None:
    dependencies = (after("7"), after("8", Condition.FAIL))
    run = make_run(tmp_path, array="array-0a1b2c", index=3, after=dependencies)
    read = runfolder.read_submission(run)
    assert read is not None
    assert (read.array, read.index, read.after) == ("array-0a1b2c", 3, dependencies)


# What a new job may wait for -------------------------------------------------------------------


def over(run: RunFolder, state: JobState) -> RunFolder:
    submission = runfolder.read_submission(run)
    assert submission is not None
    runfolder.write_state(run, submission, JobStatus(state=state))
    return run


def test_jobs_that_are_over_are_judged_by_their_own_record(tmp_path: Path) -> None:
    over(make_run(tmp_path, "good", job_id="7"), JobState.SUCCEEDED)
    over(make_run(tmp_path, "bad", job_id="8"), JobState.TIMEOUT)
    slurm = ClusterKind.SLURM
    # Slurm has forgotten them, and would start anything after them.
    assert conditions(["7", "7:any", "8:any", "8:fail"], [tmp_path], slurm) == ()
    with pytest.raises(UserError) as caught:
        conditions(["8", "7:fail"], [tmp_path], slurm)
    said = {problem.message for problem in caught.value.problems}
    assert said == {
        "--after 8: 8 reached its time limit, so this job would never run",
        "--after 7:fail: 7 succeeded, so this job would never run",
    }


def test_all_jobs_of_an_array_are_waited_for(tmp_path: Path) -> None:
    local = {"kind": ClusterKind.LOCAL, "array": "array-0a1b2c"}
    made = [make_run(tmp_path, index=i, job_id=f"local-{i}", **local) for i in range(3)]
    over(made[1], JobState.SUCCEEDED)
    for run in (made[0], made[2]):
        files.create_text(run.queued, "")
    found = conditions(["array-0a1b2c"], [tmp_path], ClusterKind.LOCAL)
    assert {one.run_dir for one in found} == {str(made[0].path), str(made[2].path)}
    with pytest.raises(UserError, match="Slurm cannot wait for local-0, which is not its own"):
        conditions(["array-0a1b2c"], [tmp_path], ClusterKind.SLURM)


def test_conditions_that_never_hold_together_are_refused(held: Held, tmp_path: Path) -> None:
    name = held.submit("sleep 300").submission.job_id
    local = ClusterKind.LOCAL
    with pytest.raises(UserError, match=f"latest and --after {name}:fail can never"):
        conditions(["latest", f"{name}:fail"], [tmp_path], local)
    assert len(conditions(["latest", f"{name}:any"], [tmp_path], local)) == 2


def test_nobody_waits_for_a_job_of_which_nobody_can_tell(tmp_path: Path) -> None:
    make_run(tmp_path, kind=ClusterKind.LOCAL, job_id="local-0")
    with pytest.raises(UserError, match="nobody can tell how local-0 ends: its controller"):
        conditions(["latest"], [tmp_path], ClusterKind.LOCAL)


def test_an_array_and_its_jobs_are_found_by_name(tmp_path: Path) -> None:
    late = make_run(tmp_path, array="array-0a1b2c", index=10)
    early = make_run(tmp_path, array="array-0a1b2c", index=2)
    other = make_run(tmp_path, array="array-ffffff", index=2, now=2e9)
    latest = find_runs("latest", [tmp_path])
    assert (latest.runs, latest.array) == ((other,), "array-ffffff")
    assert find_runs("array-0a1b2c", [tmp_path]).runs == (early, late)
    assert find_run("array-0a1b2c/10", [tmp_path]) == late
    for word, said in (
        ("array-0a1b2d", "no array 'array-0a1b2d'"),
        ("array-0a1b2c", "is an array of 2 jobs: say which one"),
        ("array-0a1b2c/3", "no job 3 in array-0a1b2c"),
    ):
        with pytest.raises(UserError, match=said):
            find_run(word, [tmp_path])


# What is said of a job that never ran ----------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "changes", "told"),
    [
        (JobStatus(state=JobState.CANCELLED, reason="DependencyNeverSatisfied"), {}, NEVER),
        (JobStatus(state=JobState.CANCELLED), {}, NEVER),  # as sacct tells it
        (JobStatus(state=JobState.UNKNOWN, reason="Slurm no longer lists it"), {}, NEVER),
        (JobStatus(state=JobState.CANCELLED, reason="JobHeldAdmin"), {}, "JobHeldAdmin"),
        (JobStatus(state=JobState.CANCELLED), {"cancelled": True}, None),
        (JobStatus(state=JobState.UNKNOWN, reason="mute"), {"silence": "mute"}, "mute"),
        (JobStatus(state=JobState.PENDING, reason="Priority"), {}, "Priority"),
    ],
)
def test_why_slurm_ended_a_job_is_found_in_the_jobs_before_it(
    tmp_path: Path, status: JobStatus, changes: dict[str, object], told: str | None
) -> None:
    failed = over(make_run(tmp_path), JobState.FAILED)
    submission = Submission(
        run_id="x", name="x", cluster="c", kind=ClusterKind.SLURM, framework="torchrun",
        nodes=1, tasks=1, submitted_at=0.0, job_id="8", after=(after(run=failed),),
    )  # fmt: skip
    evidence = Evidence(
        submission=submission,
        results=Results(attempt=0, of=1, nodes=()),
        first_failure=None,
        cancelled=False,
        scheduler=None,
    )
    evidence = dataclasses.replace(evidence, **changes)
    said = explained(status, evidence, states_of)
    assert said.reason == told
    assert said.state is (JobState.CANCELLED if told == NEVER else status.state)


def test_slurms_own_words_are_read(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    from clusterkit.executors.slurm.states import Query  # noqa: PLC0415

    wanted = {"7": Query(script=run.path / "job.sbatch", name="toy", since=0.0)}
    line = f"7|CANCELLED|DependencyNeverSatisfied|N/A|30:00|{run.path}/job.sbatch\n"
    assert parse_squeue(line, wanted) == {
        "7": SchedulerState(
            state=JobState.CANCELLED,
            word="CANCELLED",
            reason="DependencyNeverSatisfied",
            limit_s=1800,
        )
    }


# Held jobs -------------------------------------------------------------------------------------


class Held:
    """Submit jobs of one node to this machine, and see to it that none is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: list[RunFolder] = []

    def submit(self, body: str, *before: Dependency, **dependencies: object) -> Job:
        plan = make_plan(make_cluster(self.folder), nodes=1)
        run = runfolder.create(plan.cluster, plan.name)
        self.runs.append(run)
        tied = Dependencies(after=before, **dependencies)
        submit_plan(plan, [node_script(body)], run, secrets={}, dependencies=tied)
        return load_job(run)

    def array(self, count: int, at_once: int, body: str) -> list[Job]:
        jobs: list[Job] = []
        for index in range(count):
            before = [follow(jobs[index - at_once], Condition.ANY)] if index >= at_once else []
            jobs.append(self.submit(body, *before, array="array-0a1b2c", index=index))
        return jobs


def follow(job: Job, ending: Condition = Condition.OK) -> Dependency:
    return after(job.submission.job_id or "", ending, job.run)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    made = Held(tmp_path)
    yield made
    for run in made.runs:
        if run.path.exists():
            cancel(run)


def test_a_held_job_is_whole_on_disk_and_starts_when_somebody_waits(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = held.folder / "go"
    first = held.submit(f"until [[ -e {go} ]]; do sleep 0.1; done")
    monkeypatch.setenv("OF_THE_SHELL", "mine")
    second = held.submit("echo $OF_THE_SHELL", follow(first))
    monkeypatch.delenv("OF_THE_SHELL")
    name = first.submission.job_id
    assert (second.status.state, second.status.reason) == (
        JobState.PENDING,
        f"after {name} has succeeded",
    )
    assert second.run.plan.exists()
    assert second.run.shell.stat().st_mode & 0o777 == files.PRIVATE
    go.touch()
    assert wait(second.run).status.state is JobState.SUCCEEDED
    assert load_job(first.run).status.state is JobState.SUCCEEDED
    # It has the environment of the shell that submitted, which is not kept any longer.
    assert second.run.log(0).read_text() == "mine\n"
    assert not second.run.shell.exists()
    assert not second.run.queued.exists()


def test_a_condition_that_never_holds_ends_the_job_with_the_reason(held: Held) -> None:
    first = held.submit("exit 3")
    never = held.submit("echo no", follow(first))
    then = held.submit("echo no", follow(never))
    instead = held.submit("echo yes", follow(first, Condition.FAIL), follow(never, Condition.ANY))
    name = first.submission.job_id
    ended = wait(never.run)
    assert ended.status.state is JobState.CANCELLED
    assert ended.status.reason == f"{name} failed, and it was to run after its success"
    assert wait(then.run).status.reason == (
        f"{never.submission.job_id} was cancelled, and it was to run after its success"
    )
    assert wait(instead.run).status.state is JobState.SUCCEEDED
    assert not never.run.log(0).exists()


def test_a_held_job_is_cancelled_at_once_and_never_starts(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = held.folder / "go"
    first = held.submit(f"until [[ -e {go} ]]; do sleep 0.1; done")
    second = held.submit("echo no", follow(first, Condition.ANY))
    sleep, here = time.sleep, threading.current_thread()

    def hasty(seconds: float) -> None:
        if threading.current_thread() is here:  # threads of other tests may tick
            pytest.fail(f"it is over, and waited for {seconds} s")
        sleep(seconds)

    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", hasty)
        assert cancel(second.run).status.state is JobState.CANCELLED
    go.touch()
    assert wait(first.run).status.state is JobState.SUCCEEDED
    assert start_due([second]) is None
    assert not second.run.controller.exists()
    assert not second.run.shell.exists()


def test_only_one_client_starts_it(held: Held) -> None:
    first = held.submit("true")
    second = held.submit("echo once", follow(first))
    wait(first.run)
    children = [os.fork() for _ in range(3)]
    if 0 in children:
        start_due([second])
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)
    assert wait(second.run).status.state is JobState.SUCCEEDED
    assert second.run.log(0).read_text() == "once\n"


@pytest.mark.parametrize(("trouble", "still"), [(KeyboardInterrupt, False), (OSError, True)])
def test_a_held_job_is_no_longer_held_once_it_may_have_started(
    held: Held, monkeypatch: pytest.MonkeyPatch, trouble: type[BaseException], still: bool
) -> None:
    first = held.submit("true")
    second = held.submit("true", follow(first))
    wait(first.run)

    def fail(*_: object, **__: object) -> None:
        raise trouble

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", fail)
        with suppress(KeyboardInterrupt):
            assert start_due([second]) is not None
    assert second.run.queued.exists() is still
    if not still:
        held.runs.remove(second.run)  # a cancel would wait for a controller that never was


def test_a_folder_that_is_gone_lets_nobody_wait_for_ever(held: Held) -> None:
    first = held.submit("true")
    second = held.submit("echo no", follow(first, Condition.ANY))
    wait(first.run)
    held.runs.remove(first.run)
    files.remove_tree(first.run.path)
    ended = wait(second.run)
    assert ended.status.state is JobState.CANCELLED
    assert "the run folder of" in (ended.status.reason or "")


def test_no_more_of_an_array_run_at_once_than_its_limit(held: Held) -> None:
    jobs = held.array(5, 2, "sleep 0.5")
    assert [is_queued(job) for job in jobs] == [False, False, True, True, True]
    seen: list[str] = []
    done = wait_for_all(
        [job.run for job in jobs],
        changed=lambda job: seen.append(job.status.state.value),
        on_problem=pytest.fail,
    )
    assert {job.status.state for job in done} == {JobState.SUCCEEDED}
    times = [load_job(job.run).results[0] for job in jobs]
    moments = sorted([(one.started_at, 1) for one in times] + [(one.ended_at, -1) for one in times])
    running = most = 0
    for _, change in moments:
        running += change
        most = max(most, running)
    assert most <= 2
    assert seen.count("succeeded") == 5


def test_nobody_waits_for_ever_after_a_job_of_which_nobody_can_tell(held: Held) -> None:
    jobs = held.array(3, 1, "sleep 300")
    first = jobs[0].run
    controller = files.read_json(first.controller)
    assert controller is not None
    there = {controller["pid"], *processes.marked(first.marker(), prefix=True)}
    for signum in (signal.SIGSTOP, signal.SIGKILL):  # else one of them tells how another ended
        for pid in there:
            processes.send(pid, signum)
    processes.kill_all(lambda: processes.marked(first.marker(), prefix=True))
    troubles: list[str] = []
    done = wait_for_all(
        [job.run for job in jobs], changed=lambda _: None, on_problem=troubles.append
    )
    assert [job.status.state.value for job in done] == ["unknown", "pending", "pending"]
    assert f"nobody can tell how {jobs[0].submission.job_id} ends" in troubles[0]


def test_cancelling_an_array_starts_none_of_those_that_wait(held: Held) -> None:
    jobs = held.array(4, 1, "sleep 300")
    ended, troubles = cancel_all([job.run for job in jobs])
    assert troubles == []
    assert {job.status.state for job in ended} == {JobState.CANCELLED}
    assert [job.run.controller.exists() for job in ended] == [True, False, False, False]
