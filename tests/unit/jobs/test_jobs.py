"""Find jobs, judge their state, follow their output, and the verbs about them."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from clusterkit.cli.diagnose.report import not_again
from clusterkit.cli.frame.job_args import plain_state, sentence_of, state_text, values_text
from clusterkit.cli.jobs.cancel import cancel
from clusterkit.cli.jobs.logs import _End, follow_run
from clusterkit.cli.jobs.status import _attempts, _size, _table, _times, endings
from clusterkit.cli.jobs.wait import _rows, wait, wait_for_runs, worst
from clusterkit.core import files
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import ClusterKind, JobState, JobStatus, NodeResult, RequeueOn
from clusterkit.core.text import ESCAPES
from clusterkit.executors import SchedulerState
from clusterkit.executors.run import node_results, placement, runfolder
from clusterkit.executors.run.node_results import Results, read_attempts
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.run.submit_journal import Handing, ProcessId
from clusterkit.jobs import watch as watch_module
from clusterkit.jobs.find import Named, begins_name, find_run, find_runs, list_runs
from clusterkit.jobs.logs import LogReader, follow, read_logs, tail_position
from clusterkit.jobs.state.conclude import Evidence, evaluate
from clusterkit.jobs.state.load import Job, load_jobs
from clusterkit.observe.diagnose.rank_lines import RankLines
from tests.helpers.command_line import typed_in
from tests.helpers.growth import growth
from tests.helpers.paths import ROOT
from tests.helpers.plans import make_cluster, make_plan, node_script


def make_run(folder: Path, name: str = "toy", *, now: float = 0.0, **changes: object) -> RunFolder:
    run = runfolder.create(make_cluster(folder), name, now=now)
    submission = Submission(
        run_id=run.run_id, name=name, cluster="c", kind=ClusterKind.SLURM, framework="torchrun",
        nodes=2, tasks=2, submitted_at=now, job_id="7",
    )  # fmt: skip
    runfolder.write_submission(run, dataclasses.replace(submission, **changes))
    return run


def node(rank: int, code: int = 0, reason: str | None = None, ended: float = 0.0) -> NodeResult:
    return NodeResult(
        node_rank=rank, node=f"n{rank}", exit_code=code, started_at=0.0, ended_at=ended,
        reason=reason,
    )  # fmt: skip


def judged(
    *nodes: NodeResult,
    said: SchedulerState | None = None,
    kind: ClusterKind = ClusterKind.SLURM,
    attempt: int = 0,
    requeue: int = 0,
    cancelled: bool = False,
    silence: str | None = None,
    job_id: str | None = "7",
    handing: Handing | None = None,
    under_way: bool = False,
    now: float = 1e6,
    tasks: int = 2,
    of: int = 2,
    once: bool = False,
    resumes: bool = False,
    gone: NodeResult | None = None,
    left_out: int = 0,
    in_vain: str | None = None,
    spares: int = 0,
    why_again: str | None = None,
) -> JobStatus:
    submission = Submission(
        run_id="r", name="toy", cluster="c", kind=kind, framework="torchrun", nodes=2, tasks=tasks,
        submitted_at=0.0, job_id=job_id, requeue=requeue, once=once, resumes=resumes,
        spares=spares,
    )  # fmt: skip
    own = [result for result in nodes if result.exit_code and result.reason is None]
    evidence = Evidence(
        submission=submission,
        results=Results(attempt=attempt, of=of if nodes else 0, nodes=nodes),
        first_failure=own[0] if own else gone,
        cancelled=cancelled,
        scheduler=said,
        silence=silence,
        handing=handing,
        under_way=under_way,
        now=now,
        in_vain=in_vain,
        left_out=left_out,
        why_again=why_again,
    )
    return evaluate(evidence)


def verdict(*nodes: NodeResult, **known: Any) -> tuple[str, int | None]:
    status = judged(*nodes, **known)
    return status.state.value, status.exit_code


def says(state: JobState, word: str = "", code: int | None = None) -> SchedulerState:
    return SchedulerState(state=state, word=word or state.upper(), exit_code=code)


def test_a_job_that_has_used_up_its_spares_says_so() -> None:
    failed = judged(node(0, 1), node(1, reason="peer"), spares=1, requeue=3, left_out=2)
    assert failed.reason == "n0 exited with 1; no spare is left"
    one_left = judged(node(0, 1), node(1, reason="peer"), spares=2, requeue=3, left_out=2)
    assert one_left.reason == "n0 exited with 1"


def test_absence_is_never_success() -> None:
    assert verdict() == ("unknown", None)
    assert verdict(node(0)) == ("unknown", None)
    assert verdict(silence="Slurm does not answer") == ("unknown", None)
    assert verdict(kind=ClusterKind.LOCAL) == ("unknown", None)
    assert verdict(job_id=None) == ("unknown", None)


def test_a_job_without_an_id_was_submitted_never_or_perhaps() -> None:
    begun = Handing(client=ProcessId.own(), began_at=999.0)
    handed = dataclasses.replace(begun, at=1000.0)
    assert verdict(job_id=None, handing=begun, under_way=True) == ("pending", None)
    assert verdict(job_id=None, handing=begun) == ("failed", None)
    assert verdict(job_id=None, handing=begun, kind=ClusterKind.LOCAL) == ("failed", None)
    assert verdict(job_id=None, handing=begun, cancelled=True) == ("cancelled", None)
    elsewhere = dataclasses.replace(begun.client, boot_id="other")
    after_a_restart = dataclasses.replace(begun, client=elsewhere)
    assert verdict(job_id=None, handing=after_a_restart) == ("unknown", None)
    assert verdict(job_id=None, handing=handed, under_way=True, silence="no") == ("pending", None)
    assert verdict(job_id=None, handing=handed) == ("unknown", None)
    assert verdict(job_id=None, handing=handed, silence="Slurm does not answer")[0] == "unknown"
    assert verdict(node(0), node(1), job_id=None, handing=handed) == ("succeeded", 0)


@pytest.mark.parametrize(
    ("missing_since", "never_after"),
    [
        (1000.0, 1015.0),  # a controller that answers at once has worked off what came before
        (1030.0, 1090.0),  # a request in a socket comes again after twice the time at most
        (1200.0, 1320.0),
        (1400.0, 1480.0),  # by then its credentials are not valid any more
        (9000.0, 9000.0),
    ],
)
def test_a_missing_job_may_still_come_for_a_while(missing_since: float, never_after: float) -> None:
    handed = Handing(client=ProcessId.own(), began_at=999.0, at=1000.0, missing_since=missing_since)
    assert handed.never_after == never_after
    before = verdict(job_id=None, handing=handed, now=never_after - 1)
    assert before == ("unknown", None)
    assert verdict(job_id=None, handing=handed, now=never_after) == ("failed", None)
    silent = verdict(job_id=None, handing=handed, now=1e9, silence="Slurm does not answer")
    assert silent == ("unknown", None)


def test_own_results_come_first() -> None:
    assert verdict(node(0), node(1)) == ("succeeded", 0)
    assert verdict(node(0), node(1), said=says(JobState.RUNNING, "COMPLETING")) == ("succeeded", 0)
    assert verdict(node(0), node(1, 3)) == ("failed", 3)
    for requeue in (0, 1):
        ended = says(JobState.SUCCEEDED)
        assert verdict(node(0), node(1, 3), said=ended, requeue=requeue) == ("failed", 3)
    assert verdict(node(0, 5, "peer"), node(1, 5), said=says(JobState.FAILED, code=143)) == (
        "failed",
        5,
    )
    assert verdict(node(1, 3), silence="down") == ("unknown", None)
    assert verdict(node(0), node(1, 3), silence="down") == ("failed", 3)


def test_an_elastic_job_is_as_large_as_its_attempt() -> None:
    running = says(JobState.RUNNING)
    assert verdict(node(0), said=running, tasks=1, of=4) == ("running", None)
    assert verdict(node(0), tasks=1, of=4) == ("unknown", None)
    assert verdict(*map(node, range(4)), said=running, tasks=1, of=4) == ("succeeded", 0)


def test_of_a_command_that_runs_once_the_first_node_tells_all() -> None:
    assert verdict(node(0), tasks=1, of=2, once=True) == ("succeeded", 0)


def test_the_scheduler_knows_why() -> None:
    both = (node(0, 143, "terminated"), node(1, 143, "terminated"))
    assert verdict(*both, said=says(JobState.TIMEOUT)) == ("timeout", 143)
    assert verdict(*both, said=says(JobState.PREEMPTED)) == ("preempted", 143)
    assert verdict(said=says(JobState.FAILED, "NODE_FAIL", 1)) == ("failed", 1)
    assert verdict(said=says(JobState.SUCCEEDED)) == ("succeeded", 0)
    assert verdict(node(0, 143, "timeout"), node(1, 143, "timeout")) == ("timeout", 143)


def test_ranks_that_obey_the_time_limit_with_exit_code_0_have_not_succeeded() -> None:
    limit = dataclasses.replace(says(JobState.TIMEOUT), start=100.0, limit_s=60)
    completing = dataclasses.replace(says(JobState.RUNNING, "COMPLETING"), start=100.0, limit_s=60)
    obeyed, before = node(1, ended=161.0), node(1, ended=150.0)
    told = judged(node(0, ended=150.0), obeyed, said=limit)
    assert (told.state, told.exit_code, told.time_limit_s) == (JobState.TIMEOUT, None, 60)
    assert verdict(node(0), obeyed, said=completing) == ("running", None), "Slurm will say it"
    assert verdict(node(0), obeyed, said=says(JobState.SUCCEEDED)) == ("succeeded", 0)
    assert verdict(node(0), obeyed) == ("succeeded", 0)  # Slurm has forgotten it
    for said in (limit, completing):
        assert verdict(node(0), before, said=said) == ("succeeded", 0)


def test_nodes_that_a_time_limit_ends_one_after_the_other_miss_each_other() -> None:
    gone = dataclasses.replace(node(0, 255), lost="n1 no longer hears of it")
    ended, limit = node(1, 143, "timeout"), says(JobState.TIMEOUT)
    assert verdict(ended, gone=gone, said=limit) == ("timeout", 143)
    assert verdict(ended, node(0, 143, "timeout"), gone=gone, said=limit) == ("timeout", 143)
    assert verdict(ended, gone=gone, said=says(JobState.FAILED)) == ("failed", 255)


def test_the_exit_code_is_that_of_the_node_which_ended_first() -> None:
    """Whatever its rank: the others may have been broken by its end."""
    late, early = node(0, 143, "timeout", ended=9.0), node(1, 15, "timeout", ended=8.0)
    assert verdict(late, early) == ("timeout", 15)


def test_nodes_know_what_slurm_forgets_of_a_job_that_ends_in_its_grace_time() -> None:
    told = (node(0, 143, "preempted"), node(1, 143, "terminated"))
    assert verdict(*told, said=says(JobState.FAILED)) == ("preempted", 143)
    assert verdict(*told) == ("preempted", 143)
    assert verdict(*told, said=says(JobState.PENDING), requeue=1) == ("requeued", None)
    assert verdict(*told, said=says(JobState.CANCELLED), cancelled=True)[0] == "cancelled"
    assert verdict(node(0, 143, "preempted"), node(1, 1), said=says(JobState.FAILED))[0] == "failed"


def test_a_node_without_a_word_is_named_where_the_others_were_told_to_end() -> None:
    told = [dataclasses.replace(node(rank, 143, "terminated"), among="n[0-3]") for rank in range(4)]
    assert node_results.silence_of(told) is None
    assert node_results.silence_of([]) is None
    one = node_results.silence_of([told[0], told[1], told[3]])
    assert one == ("n2 has left no word: clusterkit's worker there, or the node, died")
    assert (node_results.silence_of(told[:2]) or "").startswith("n[2-3] have left no word: ")


@pytest.mark.parametrize("said", [None, SchedulerState(state=JobState.FAILED, word="FAILED")])
def test_a_node_that_ended_well_has_left_its_word(said: SchedulerState | None) -> None:
    """The others were told to end: it is none that has gone."""
    other = dataclasses.replace(node(1, 1, "terminated"), among="n[0-1]")
    evidence = Evidence(
        submission=Submission(
            run_id="r", name="toy", cluster="c", kind=ClusterKind.SLURM, framework="torchrun",
            nodes=2, tasks=2, submitted_at=0.0, job_id="7",
        ),
        results=Results(attempt=0, of=2, nodes=(node(0), other)),
        first_failure=None, cancelled=False, scheduler=said, silence=None, handing=None,
        under_way=False, now=1e6,
    )  # fmt: skip
    status = evaluate(evidence)
    assert (status.state, status.reason) == (JobState.FAILED, "it was told to end (SIGTERM)")


def test_a_job_is_over_when_all_but_a_node_that_has_gone_have_ended() -> None:
    running, gone = says(JobState.RUNNING), node_results.lost(1, "n1", "no longer answers")
    ended = node(0, 255, "peer")
    assert verdict(said=running, gone=gone) == ("running", None)
    assert verdict(ended, said=running, gone=gone) == ("failed", 255)
    assert verdict(ended, said=says(JobState.CANCELLED), gone=gone) == ("failed", 255)
    assert verdict(said=says(JobState.CANCELLED), gone=gone) == ("failed", 255)  # by itself
    assert verdict(said=says(JobState.CANCELLED), gone=gone, cancelled=True)[0] == "cancelled"
    assert verdict(ended, said=running, gone=gone, requeue=1) == ("running", None)
    assert verdict(ended, said=running, gone=gone, requeue=1, attempt=1) == ("failed", 255)


def test_where_a_full_disk_let_nobody_begin_no_node_is_said_to_have_exited() -> None:
    full = "No space left on device"
    unbegun, begun = (
        [dataclasses.replace(node(rank, 74), unwritten=full, message=words) for rank in range(2)]
        for words in (node_results.UNBEGUN, None)
    )
    why = f"could not begin, or write anything: {full}"
    for said in (None, says(JobState.FAILED), says(JobState.RUNNING, "COMPLETING")):
        assert judged(*unbegun, said=said).reason == f"n[0-1] {why}"
        some = judged(begun[0], unbegun[1], said=said).reason
        assert some == (
            f"n0 exited with 74; n[0-1] could not write all of the output, or how it ended: {full}"
        )


def test_a_job_whose_service_runs_its_step_again_is_over_when_slurm_says_so() -> None:
    failed, running = (node(0, 1), node(1, 143, "peer")), says(JobState.RUNNING)
    assert verdict(*failed, said=running) == ("failed", 1)
    assert verdict(*failed, said=running, resumes=True) == ("running", None)
    completing = says(JobState.RUNNING, "COMPLETING")
    assert verdict(*failed, said=completing, resumes=True) == ("failed", 1)
    assert verdict(*failed, said=says(JobState.FAILED), resumes=True) == ("failed", 1)


def test_a_requeued_job_is_not_over() -> None:
    both = (node(0, 143, "terminated"), node(1, 143, "terminated"))
    assert verdict(*both, said=says(JobState.PENDING), requeue=1) == ("requeued", None)
    assert verdict(*both, said=says(JobState.PREEMPTED), requeue=1) == ("requeued", None)
    waits = dataclasses.replace(says(JobState.PENDING), reason="ReqNodeNotAvail")
    assert (
        judged(*both, said=waits, requeue=1).reason == "attempt 2 of 2 is queued: ReqNodeNotAvail"
    )
    again = judged(*both, said=says(JobState.RUNNING), requeue=1, why_again="time limit")
    assert again.reason == "attempt 2 of 2; attempt 1 ended: time limit"
    runs = dataclasses.replace(says(JobState.RUNNING), reason="NonZeroExitCode")  # of the last one
    assert judged(*both, said=runs, requeue=1).reason is None
    assert verdict(*both, said=says(JobState.RUNNING, "COMPLETING"), requeue=1)[0] == "running"
    assert verdict(*both, said=says(JobState.PREEMPTED), requeue=1, attempt=1)[0] == "preempted"


def test_a_job_goes_on_after_a_fault_of_a_node_that_its_clients_can_replace() -> None:
    own, peer = node(0, 1), node(1, 143, "peer")
    said, ssh = says(JobState.FAILED), ClusterKind.SSH
    assert verdict(own, peer, said=said, kind=ssh, requeue=1)[0] == "failed"
    faulty = dataclasses.replace(peer, fault="GPU011 Xid 79")
    assert verdict(own, faulty, said=said, kind=ssh, requeue=1)[0] == "requeued"
    assert verdict(own, faulty, said=said, kind=ssh, requeue=1, left_out=1)[0] == "failed"
    again = judged(own, faulty, said=said, kind=ssh, requeue=1, in_vain="as before, at step 40")
    assert (again.state, again.reason) == (JobState.FAILED, "as before, at step 40")


def test_cancelled() -> None:
    both = (node(0, 143, "cancelled"), node(1, 143, "cancelled"))
    assert verdict(*both, cancelled=True, said=says(JobState.CANCELLED)) == ("cancelled", 143)
    assert verdict(*both, cancelled=True) == ("cancelled", 143)
    assert verdict(cancelled=True) == ("cancelled", None)
    assert verdict(node(0), node(1), cancelled=True) == ("succeeded", 0)


def test_who_told_the_nodes_to_end_is_left_to_slurm() -> None:
    """After scancel by hand squeue shows the job for a moment as completing, no more."""
    both = (node(0, 1, "terminated"), node(1, 1, "terminated"))
    completing = says(JobState.RUNNING, "COMPLETING")
    assert verdict(*both, said=completing) == ("running", None)
    assert verdict(*both, said=completing, cancelled=True)[0] == "cancelled"
    assert verdict(*both, said=says(JobState.CANCELLED)) == ("cancelled", 1)
    assert verdict(*both, said=says(JobState.FAILED)) == ("failed", 1)
    assert verdict(*both) == ("failed", 1)  # Slurm has forgotten it
    assert verdict(node(0, 7), node(1, 1, "peer"), said=completing) == ("failed", 7)


def test_nodes_that_miss_each_other_while_a_job_is_cancelled_are_no_failure() -> None:
    gone = node_results.lost(1, "n1", "no longer answers")
    for ended in (node(0, 143, "terminated"), node(0, 143, "peer"), node(0, 143, "cancelled")):
        for said in (says(JobState.CANCELLED), says(JobState.FAILED), None):
            assert verdict(ended, said=said, gone=gone, cancelled=True)[0] == "cancelled"


def test_find_by_every_name(tmp_path: Path) -> None:
    first = make_run(tmp_path, "alpha", now=1e9, job_id="41")
    second = make_run(tmp_path, "beta", now=2e9, job_id="42")
    older = make_run(tmp_path, "gamma", now=0.5e9, job_id="42")
    roots = [tmp_path]
    assert find_run("41", roots) == first
    assert find_run("42", roots) == second, "ids are used again; the newest counts"
    assert find_run("latest", roots) == second
    assert find_run("bet", roots) == second
    assert find_run(older.run_id, roots) == older
    assert find_run(older.key, roots) == older
    assert find_run(f"local-{older.key}", roots) == older
    assert find_run(str(first.path), roots) == first
    with pytest.raises(UserError, match="an empty word"):
        find_run("", roots)
    assert [run.run_id for run in list_runs(roots)] == [
        run.run_id for run in (older, first, second)
    ]


def test_latest_is_no_job_that_was_refused(tmp_path: Path) -> None:
    refused = make_run(tmp_path, "greedy", now=3e9, job_id=None)
    submission = runfolder.read_submission(refused)
    assert submission is not None
    runfolder.write_state(refused, submission, JobStatus(state=JobState.FAILED, reason="no room"))
    assert find_run("latest", [tmp_path]) == refused, "there is no other"
    running = make_run(tmp_path, "modest", now=2e9)
    assert find_run("latest", [tmp_path]) == running


def test_the_name_of_a_sweep_is_all_of_it(tmp_path: Path) -> None:
    sweep = [
        make_run(tmp_path, "lr", job_id=str(50 + k), array="array-1a2b3c", index=k)
        for k in range(3)
    ]
    assert find_runs("lr", [tmp_path]) == Named(runs=tuple(sweep), array="array-1a2b3c")
    assert find_run("lr/2", [tmp_path]) == sweep[2]
    with pytest.raises(UserError, match="no job 3 in array-1a2b3c"):
        find_run("lr/3", [tmp_path])
    with pytest.raises(UserError, match="no such folder"):
        find_run("rl/3", [tmp_path])
    with pytest.raises(UserError, match="no such folder"):
        find_run("/97531", [tmp_path])
    make_run(tmp_path, "lr", job_id="60")
    with pytest.raises(UserError, match="could be any of 4 runs"):
        find_runs("lr", [tmp_path])


def test_a_job_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are no runs"):
        find_run("7", [tmp_path])
    run = make_run(tmp_path, "alpha", job_id="12345")
    make_run(tmp_path, "alpha", job_id="12399")
    with pytest.raises(UserError, match="could be any of 2 runs"):
        find_run("alpha", [tmp_path])
    with pytest.raises(UserError) as caught:
        find_run("12346", [tmp_path])
    assert caught.value.problems[0].hint == "did you mean '12345'?"
    make_run(tmp_path, "beta", job_id="31")
    for word in ("3", "s1", "312"):
        with pytest.raises(UserError) as caught:
            find_run(word, [tmp_path])
        assert "did you mean" not in str(caught.value)
    with pytest.raises(UserError) as caught:
        find_run("alhpa", [tmp_path])
    assert caught.value.problems[0].hint == "did you mean 'alpha'?"
    with pytest.raises(UserError, match="not a run folder"):
        find_run(str(tmp_path), [tmp_path])
    with pytest.raises(UserError, match="no such folder"):
        find_run(str(run.path) + "x", [tmp_path])


def test_five_hundred_old_jobs_cost_no_more_each_than_fifty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # nobody is asked about what is over
    for number in range(500):
        run = make_run(tmp_path, now=number * 60.0, job_id=str(number))
        submission = runfolder.read_submission(run)
        assert submission is not None
        runfolder.write_state(run, submission, JobStatus(state=JobState.FAILED, exit_code=3))
    read = []

    def count(path: Path) -> dict[str, Any] | None:
        read.append(path)
        return read_json(path)

    read_json = files.read_json
    monkeypatch.setattr(files, "read_json", count)
    jobs = load_jobs(list_runs([tmp_path]))
    assert [path.name for path in read] == ["state.json"] * 500, "one small file a job"
    assert len(jobs) == 500
    assert {job.status.exit_code for job in jobs} == {3}
    runs = list_runs([tmp_path])
    assert growth(lambda many: load_jobs(runs[:many]), 50, 500) < 3


def test_a_final_state_is_kept_and_a_stranger_may_look(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    files.write_text(run.secrets, "{}", mode=0o600)
    for rank in (0, 1):
        node_results.write_result(run, node(rank), attempt=0, n_nodes=2)
    (job,) = load_jobs([run])
    assert job.status.state is JobState.SUCCEEDED
    assert not run.secrets.exists()
    for path in run.nodes.iterdir():
        path.unlink()
    (again,) = load_jobs([run])
    assert again.status == job.status


# Output ----------------------------------------------------------------------------------------


def test_lines_of_bytes_of_any_kind(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"ok\n\xff\xfe bad\n\xc3")
    reader = LogReader(path)
    assert list(reader.pieces()) == ["ok\n\ufffd\ufffd bad\n"]
    with path.open("ab") as stream:
        stream.write(b"\xa9 after\nrest")
    assert list(reader.pieces()) == ["é after\n"]
    assert list(reader.rest()) == ["rest"]
    assert list(reader.rest()) == []


def test_a_log_that_was_cut_off_or_replaced_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo\n")
    reader = LogReader(path)
    assert list(reader.pieces()) == ["one\ntwo\n"]
    path.write_text("new\n")
    assert list(reader.pieces()) == ["new\n"]
    path.rename(tmp_path / "log.1")
    assert list(reader.pieces()) == []
    path.write_text("a longer line in another file\n")
    assert list(reader.pieces()) == ["a longer line in another file\n"]


def test_a_line_without_end_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 1_000_000)
    pieces = list(LogReader(path).pieces())
    assert max(map(len, pieces)) <= 1 << 16
    assert sum(map(len, pieces)) > 900_000


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("lines", [1, 3, 20_000])
@pytest.mark.parametrize("wanted", [0, 1, 2, 5000, 30_000])
def test_tail(tmp_path: Path, lines: int, wanted: int, end: str) -> None:
    path = tmp_path / "log"
    text = [f"line {number}" for number in range(lines)]
    path.write_text("\n".join(text) + end)
    position = tail_position(path, wanted)
    rest = path.read_text()[position:].splitlines()
    assert rest == (text[-wanted:] if wanted else [])


def test_several_nodes_name_their_lines_and_one_does_not(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    files.write_text(run.log(0), "a\nb")
    files.write_text(run.log(1), "c\n")
    assert list(read_logs(run)) == ["[node-0] a\n", "[node-0] b\n", "[node-1] c\n"]
    assert list(read_logs(run, 0, tail=1)) == ["b\n"]


@pytest.mark.parametrize(
    ("attempts", "labels"),
    [
        ([("n1.site", "n2")], ["[node-0 n1] ", "[node-1 n2] "]),
        ([("n1", "n2"), ("n1", "n3")], ["[node-0 n1] ", "[node-1] "]),
        ([("node-0", "node-1")], ["[node-0] ", "[node-1] "]),
        ([("n1\x1b[2J", "n2")], ["[node-0] ", "[node-1] "]),
    ],
)
def test_lines_name_the_host_that_the_node_has_in_all_attempts(
    tmp_path: Path, attempts: list[tuple[str, ...]], labels: list[str]
) -> None:
    run = make_run(tmp_path)
    for attempt, names in enumerate(attempts):
        placement.note(run, attempt, names)
    for rank in range(2):
        files.write_text(run.log(rank), "x\n")
    assert list(read_logs(run)) == [f"{label}x\n" for label in labels]
    with pytest.raises(UserError, match="no node 5: the job has output of 2"):
        list(read_logs(run, 5))


def test_what_a_launcher_printed_as_it_was_ended_is_told_from_a_failure(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    files.write_text(run.log(0), "SignalException: Process 7 got signal: 15\n")
    submission = runfolder.read_submission(run)
    assert submission is not None
    assert typed_in(tmp_path, "logs", str(run.path)).stderr == ""
    for state in (JobState.CANCELLED, JobState.FAILED):
        runfolder.write_state(run, submission, JobStatus(state=state))
        said = typed_in(tmp_path, "logs", str(run.path)).stderr
        assert said == ("7 cancelled\n" if state is JobState.CANCELLED else "")


def test_logs_take_the_name_of_a_node_as_well(tmp_path: Path) -> None:
    """The names are those that the nodes have reported; none may be taken for another."""
    run = make_run(tmp_path)
    for number in (0, 1):
        files.write_text(run.log(number), f"output {number}\n")
        node_results.write_result(run, node(number), attempt=0, n_nodes=2)
    for name in ("n1", "n[1]", "1", "node-1"):
        assert typed_in(tmp_path, "logs", str(run.path), "--node", name).stdout == "output 1\n"
    refused = {
        "n11": ("--node n11: no such node of this job", "did you mean 'n1'?"),
        "gpu": ("--node gpu: no such node of this job", "known: n0, n1"),
        "n[0-1]": ("--node n[0-1]: 2 nodes", "name one"),
        "2": ("no node 2: the job has output of 2", "nodes count from 0"),
    }
    for name, (message, hint) in refused.items():
        wrong = typed_in(tmp_path, "logs", str(run.path), "--node", name)
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert message in wrong.stderr
        assert hint in wrong.stderr


def test_who_comes_back_to_a_rank_or_a_node_is_told_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clusterkit.cli.jobs.logs.follow_output", interrupted)
    run = make_run(tmp_path)
    for number in (0, 1):
        node_results.write_result(run, node(number), attempt=0, n_nodes=2)
    for chosen, told in (
        ({"node": 1, "rank": 3}, " --rank 3"),
        ({"node": 1}, " --node 1"),
        ({}, ""),
    ):
        assert follow_run(run, **chosen) == 130
        assert f"come back  clusterkit logs -f 7{told}\n" in capsys.readouterr().err


def test_a_name_that_several_nodes_have_chooses_none(tmp_path: Path) -> None:
    run = make_run(tmp_path, kind=ClusterKind.LOCAL)
    for number in (0, 1):
        one = dataclasses.replace(node(number), node="here")
        node_results.write_result(run, one, attempt=0, n_nodes=2)
    wrong = typed_in(tmp_path, "logs", str(run.path), "--node", "here")
    assert "nodes 0 to 1 of this job are there" in wrong.stderr
    assert "by its number: --node 0" in wrong.stderr


def ranked(
    folder: Path, *logs: str, slots: int = 2, once: bool = False, **changes: object
) -> RunFolder:
    """Return a run of two nodes that have printed `logs`."""
    run = make_run(folder, once=once)
    plan = {"framework": "torchrun", "slots": [slots] * 2, "processes": slots * 2, **changes}
    files.write_json(run.plan, plan)
    run.logs.mkdir(exist_ok=True)
    for number, text in enumerate(logs):
        run.log(number).write_text(text)
    return run


def of_rank(run: RunFolder, rank: int, tail: int | None = None) -> list[str]:
    lines = RankLines(run, rank)
    pieces = read_logs(run, lines.node, tail=tail, keep=None if lines.alone else lines.keep)
    return [line.rpartition("] ")[2] for piece in pieces for line in piece.splitlines()]


def test_the_lines_of_a_rank_are_told_by_what_stands_before_them(tmp_path: Path) -> None:
    tee = "[default0]:a\n[default1]:b\nloss 3\n[default1]:c\n"
    trace = "[rank3]: Traceback (most recent call last):\n[rank2]: other\n"
    run = ranked(tmp_path, tee, f"{tee}{trace}[3] step\n3: step\n")
    assert of_rank(run, 1) == ["[default1]:b", "[default1]:c"]
    assert of_rank(run, 1, tail=1) == ["[default1]:c"]
    last = "[rank3]: Traceback (most recent call last):"
    assert of_rank(run, 3) == [
        "[default1]:b",
        "[default1]:c",
        last,
    ]  # a bare number may count steps
    # Whatever its node prints is of a rank that is alone there.
    assert of_rank(ranked(tmp_path, "a\n", "b\n[rank0]: c\n", slots=1), 1) == ["b", "[rank0]: c"]


def test_who_follows_a_rank_begins_with_its_own_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"a 0\na 1\nb 2\na 3 \r 4\nb 4\nb 5\nb 6\na 7")
    reader = LogReader(log, tail=2, keep=lambda line: line.startswith("a"), prefix="> ")
    assert "".join(reader.pieces()) == "> a 1\n> a 3 \r 4\n"
    append(log, "0\nb 8\na 9\na 10\na 11\n")
    assert "".join(reader.pieces()) == "> a 70\n> a 9\n> a 10\n> a 11\n"


def test_ranks_are_sought_only_where_they_certainly_are(tmp_path: Path) -> None:
    """The plan does not say whether nodes are filled one by one, nor where Ray starts workers."""
    for changes in ({"framework": "env", "processes": 2}, {"framework": "horovod", "processes": 2}):
        lines = RankLines(ranked(tmp_path, "a\n", "b\n", **changes), 1)
        assert (lines.node, lines.alone) == (None, False)
    even = RankLines(ranked(tmp_path, "a\n", "b\n", processes=2), 1)
    assert (even.node, even.alone) == (1, True)
    for framework in ("ray", "spark"):
        lines = RankLines(ranked(tmp_path, "a\n", "b\n", slots=1, framework=framework), 1)
        assert (lines.node, lines.alone) == (None, False)
    with pytest.raises(UserError, match="how many ranks the job has is not known"):
        RankLines(ranked(tmp_path, processes=None), 0)


def test_a_long_line_is_kept_or_left_out_as_a_whole(tmp_path: Path) -> None:
    log, part = tmp_path / "log", "x" * (1 << 16)
    log.write_text(f"a {part}{part}a\nb {part}a {part}\na 2\n")
    reader = LogReader(log, keep=lambda line: line.startswith("a"))
    assert "".join(reader.pieces()) == f"a {part}{part}a\na 2\n"


def test_no_more_of_others_is_read_than_is_printed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as sparse:
        sparse.truncate(1 << 40)
    reader = LogReader(log, keep=lambda _: False, limit=1 << 24, tail=1 << 80)
    with pytest.raises(UserError, match="no more than 16 MiB of somebody else's logs"):
        list(reader.pieces())


def test_no_line_is_given_to_a_rank_whose_node_is_not_known(tmp_path: Path) -> None:
    """Local ranks say nothing where ranks move; one mpirun prints for all nodes in one log."""
    logs = ("[default1]:a\n[rank3]: b\n", "[default1]:c\n")
    for changes in ({"max_nodes": 3}, {"spares": 1}, {"command": {"slot_filter": {"option": "x"}}}):
        assert of_rank(ranked(tmp_path, *logs, **changes), 3) == ["[rank3]: b"]
    mpi = ranked(tmp_path, "[1,0]<stdout>:a\n[1,3]<stdout>:b\n", once=True, slots=1)
    with pytest.raises(UserError, match="no rank 3: the job has ranks 0 to 1"):
        RankLines(mpi, 3)
    assert of_rank(ranked(tmp_path, "[1,0]<out>:a\n[1,3]<stdout>:b\n", once=True), 3) == [
        "[1,3]<stdout>:b"
    ]


def test_logs_of_a_rank_that_no_line_names_are_refused(tmp_path: Path) -> None:
    run = ranked(tmp_path, "loss 3\n", "loss 3\n[3]:\n  time : then\n")  # torchrun's summary
    refused = typed_in(tmp_path, "logs", str(run.path), "--rank", "3")
    assert refused.returncode == 2
    assert "no line says which rank printed it" in refused.stderr
    again = f"clusterkit rerun {run.path} --set torchrun.tee=3"  # as it was typed
    assert f"to label them, submit with --set torchrun.tee=3, or {again}" in refused.stderr
    run.log(1).write_text("[rank2]: a\nloss 3\n")
    other = typed_in(tmp_path, "logs", str(run.path), "--rank", "3")
    assert other.returncode == 0
    assert "no line names rank 3" in other.stderr
    assert f"1 line; all: clusterkit logs --node 1 {run.path}" in other.stderr
    document = json.loads(typed_in(tmp_path, "logs", str(run.path), "--rank", "2", "--json").stdout)
    assert [node["text"] for node in document["nodes"]] == ["[rank2]: a\n"]
    elsewhere = typed_in(tmp_path, "logs", str(run.path), "--rank", "3", "--node", "0")
    assert "rank 3 is on node 1" in elsewhere.stderr


def test_nobody_is_told_to_label_lines_that_the_launcher_labels(tmp_path: Path) -> None:
    """A rank that has printed nothing yet is no reason to submit with what is set already."""
    launcher = "W1129 torchrun's own line\n"
    for argv, env in (
        (["python", "--tee=3", "train.py"], {}),
        (["python", "--tee", "train.py"], {}),
        (["python", "train.py"], {"PET_TEE": "3"}),
    ):
        run = ranked(tmp_path, "", launcher, command={"argv": argv}, env=env, script="train.py")
        quiet = typed_in(tmp_path, "logs", str(run.path), "--rank", "3")
        assert quiet.returncode == 0
        assert "no line names rank 3" in quiet.stderr
        assert "1 line; all:" in quiet.stderr
        assert "tee" not in quiet.stderr
        for number in (0, 1):
            node_results.write_result(run, node(number), attempt=0, n_nodes=2)
        followed = typed_in(tmp_path, "logs", "-f", str(run.path), "--rank", "3")
        assert "to label them" not in followed.stderr
    script = {"argv": ["python", "train.py", "--tee=3"]}
    run = ranked(tmp_path, "", launcher, command=script, script="train.py")
    assert "--set torchrun.tee=3" in typed_in(tmp_path, "logs", str(run.path), "--rank", "3").stderr


def append(path: Path, text: str) -> None:
    with path.open("a") as stream:
        stream.write(text)


def test_following_finds_the_nodes_that_an_elastic_job_was_given_beyond_its_least(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, job_id=None, submitted_at=time.time(), tasks=1)
    append(run.log(0), "first\n")
    lines = follow(run)
    assert next(lines) == "first\n"
    append(run.log(2), "another node\n")
    assert next(lines) == "[node-2] another node\n"
    append(run.log(0), "more\n")
    for rank in range(3):
        node_results.write_result(run, node(rank), attempt=0, n_nodes=3)
    assert list(lines) == ["[node-0 n0] more\n"]


def test_follow_reads_to_the_end_of_the_job(tmp_path: Path) -> None:
    run = make_run(tmp_path, job_id=None, submitted_at=time.time())

    def write() -> None:
        for number in range(5):
            append(run.log(0), f"step {number}\n")
            time.sleep(0.1)
        append(run.log(1), "late, without end")
        for rank in (0, 1):
            node_results.write_result(run, node(rank), attempt=0, n_nodes=2)

    writer = threading.Thread(target=write)
    writer.start()
    lines = "".join(follow(run)).splitlines(keepends=True)
    writer.join()
    late = "[node-1 n1] late, without end\n"  # its host is known by then
    assert lines == [*(f"[node-0] step {n}\n" for n in range(5)), late]


# Verbs -----------------------------------------------------------------------------------------


@pytest.fixture
def clusterkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point the command line at a folder of runs of its own."""
    config = tmp_path / "clusterkit.yaml"
    folder = tmp_path / "runs"
    config.write_text(f"clusters:\n  mine: {{kind: local, run_dir: {folder}}}\n")
    monkeypatch.setenv("CLUSTERKIT_CONFIG_FILE", str(config))
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


def start(folder: Path, body: str) -> RunFolder:
    from clusterkit.executors import submit_plan  # noqa: PLC0415

    plan = make_plan(make_cluster(folder))
    run = runfolder.create(plan.cluster, plan.name)
    submit_plan(plan, [node_script(body)], run, secrets={}, command_line=[])
    return run


def ck(*arguments: str) -> subprocess.CompletedProcess[str]:
    return typed_in(ROOT, *arguments)


def test_the_verbs_about_a_job_that_fails(clusterkit: Path) -> None:
    run = start(clusterkit, "echo hello; exit $((CK_NODE_RANK * 3))")
    waited = ck("wait", f"local-{run.key}", "--json")
    assert waited.returncode == 1
    document = json.loads(waited.stdout)
    assert document["schema"] == 1
    assert (document["state"], document["exit_code"]) == ("failed", 3)
    assert document["run_dir"] == str(run.path)
    assert document["job_id"] == f"local-{run.key}"
    assert [result["exit_code"] for result in document["nodes"]] == [0, 3]
    status = ck("status", "latest")
    assert status.returncode == 1
    assert "failed (exit 3): node-1 exited with 3" in status.stdout
    assert ck("logs", "latest").stdout == "[node-0] hello\n[node-1] hello\n"
    for node_1 in ("1", "node-1"):
        assert ck("logs", "latest", "-f", "--node", node_1).stdout == "hello\n"
    assert "known: node-0, node-1" in ck("logs", "latest", "--node", "n1").stderr
    table = ck("status")
    assert table.returncode == 0
    assert all(len(line) <= 80 for line in table.stdout.splitlines())
    assert "failed" in table.stdout.splitlines()[-1]
    listed = json.loads(ck("status", "--json").stdout)
    assert [job["state"] for job in listed["jobs"]] == ["failed"]
    times = [listed["jobs"][0][key] for key in ("submitted_at", "started_at", "ended_at")]
    assert times == sorted(times)
    watched = ck("status", "latest", "--watch")
    assert watched.returncode == 1
    assert re.search(r"^  started .*, after \d s; ran for \d s$", watched.stdout, re.MULTILINE)


def test_a_name_of_several_jobs_lists_them(clusterkit: Path) -> None:
    for day, job_id in enumerate("123456"):
        run = make_run(clusterkit, now=day * 86400.0, job_id=job_id, submitted_at=time.time() - 60)
        submission = runfolder.read_submission(run)
        assert submission is not None
        runfolder.write_state(run, submission, JobStatus(state=JobState.FAILED, exit_code=3))
    shown = ck("status", "toy")
    assert shown.returncode == 0, shown.stderr
    assert [line.split()[:2] for line in shown.stdout.splitlines()[1:]] == [
        [job_id, "failed"] for job_id in "123456"
    ]
    refused = ck("logs", "toy", "--tail", "3")
    assert refused.returncode == 2
    first, *lines = refused.stderr.splitlines()[1:]
    assert first == "hint: by its job id: clusterkit logs 6 --tail 3"
    assert [line.split()[:2] for line in lines[:5]] == [[one, "failed"] for one in "65432"]
    assert lines[5:] == ["  and 1 older: clusterkit status toy"]
    assert "could be any of 6 runs" in ck("status", "toy", "--json").stderr
    start(clusterkit, "sleep 1; echo late")
    followed = ck("logs", "toy", "--follow")
    assert (followed.returncode, "late" in followed.stdout) == (0, True)
    assert re.match(r"toy: of 7 jobs, local-\S+ is not over\n", followed.stderr)


def test_a_job_that_waits_says_for_how_long_and_when_it_is_to_start(clusterkit: Path) -> None:
    at = time.time()
    run = make_run(clusterkit, slots=16, submitted_at=at - 65)
    submission = runfolder.read_submission(run)
    assert submission is not None
    status = JobStatus(state=JobState.PENDING, reason="Resources", expected_at=at + 3600)
    job = Job(run=run, submission=submission, status=status)
    (line,) = _times(job, ())
    when = datetime.fromtimestamp(at + 3600, tz=UTC).astimezone()
    assert line == f"  waiting    1:05 min so far; expected start {when:%m-%d %H:%M}"
    assert plain_state(job) == "pending: waits for nodes or GPUs to become free (Resources)"
    open_end = dataclasses.replace(status, expected_at=None)
    silent = dataclasses.replace(open_end, reason=None)
    for there, said in ((open_end, "when it starts"), (silent, "why, nor when it starts")):
        (line,) = _times(dataclasses.replace(job, status=there), ())
        assert line == f"  waiting    1:05 min so far; Slurm does not say yet {said}"
    ended = dataclasses.replace(status, state=JobState.CANCELLED)
    assert plain_state(dataclasses.replace(job, status=ended)) == (
        "cancelled: it still waited to start (Resources)"
    )
    told = JobStatus(state=JobState.CANCELLED, exit_code=1)
    assert "exit" not in state_text(dataclasses.replace(job, status=told))
    assert _size(job.submission) == "2x8"
    assert _size(dataclasses.replace(job.submission, max_nodes=4)) == "2:4x8"


def test_a_job_shows_its_time_limit(clusterkit: Path) -> None:
    run = make_run(clusterkit, time_limit_s=1800)
    done = ck("status", run.key)
    assert "\n  limit      30 min\n" in done.stdout
    assert json.loads(ck("status", run.key, "--json").stdout)["time_limit_s"] == 1800
    of_partition = make_run(clusterkit, "short", job_id="8")
    submission = runfolder.read_submission(of_partition)
    assert submission is not None
    ended = JobStatus(state=JobState.TIMEOUT, time_limit_s=300)
    runfolder.write_state(of_partition, submission, ended)
    assert "\n  limit      5 min, of the partition\n" in ck("status", "8").stdout
    assert json.loads(ck("status", "8", "--json").stdout)["time_limit_s"] == 300
    unlimited = make_run(clusterkit, "other-20261120-120000-aaaaaa")
    assert "\n  limit " not in ck("status", unlimited.key).stdout


def test_a_narrow_terminal_shows_names_whole_rather_than_when_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, name="llama-7b-warmup-1e-4")
    status = JobStatus(state=JobState.RUNNING)
    jobs = [Job(run=run, submission=runfolder.read_submission(run), status=status)]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    for columns, has in ((200, True), (len("JOB") + 60, False)):
        monkeypatch.setenv("COLUMNS", str(columns))
        _table(jobs)
        head, row = capsys.readouterr().out.splitlines()
        assert row.endswith("  llama-7b-warmup-1e-4")
        assert ("SUBMITTED" in head) is has
        assert len(row) <= columns


def test_the_attempts_of_a_job_are_read_once(
    clusterkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(clusterkit, requeue=1)
    submission = runfolder.read_submission(run)
    assert submission is not None
    monkeypatch.setattr(node_results, "read_attempts", None)
    job = Job(run=run, submission=submission, status=JobStatus(state=JobState.PENDING))
    assert _times(job, ())[0].startswith("  waiting ")


def test_expected_starts_are_those_of_jobs_that_wait(clusterkit: Path) -> None:
    run = make_run(clusterkit)
    submission = runfolder.read_submission(run)
    assert submission is not None
    evidence = Evidence(
        submission=submission,
        results=node_results.read_results(run),
        first_failure=None,
        cancelled=False,
        scheduler=SchedulerState(state=JobState.PENDING, word="PENDING", start=1000.0),
        now=900.0,
    )
    assert evaluate(evidence).expected_at == 1000.0
    # One that Slurm has promised and not kept is no expectation any more.
    assert evaluate(dataclasses.replace(evidence, now=1100.0)).expected_at is None


def test_the_list_can_be_narrowed_to_states_and_a_cluster(clusterkit: Path) -> None:
    failed = start(clusterkit, "exit 3")
    ck("wait", failed.run_id)
    good = [start(clusterkit, "true") for _ in range(2)]
    for run in good:
        ck("wait", run.run_id)

    def listed(*words: str) -> tuple[list[str], int]:
        document = json.loads(ck("status", "--json", *words).stdout)
        assert document.keys() == {"schema", "jobs", "total"}
        return [Path(job["run_dir"]).name for job in document["jobs"]], document["total"]

    names = [run.run_id for run in (failed, *good)]
    assert listed() == (names, 3)
    assert listed("--state", "failed") == (names[:1], 1)
    assert listed("--state", "failed, Succeeded", "--cluster", "local") == (names, 3)
    # The limit counts what is left, not what was looked through.
    assert listed("--state", "succeeded", "--limit", "1") == (names[2:], 2)
    assert "1 older jobs not shown" in ck("status", "-s", "succeeded", "-n", "1").stderr
    assert listed("--state", "running") == ([], 0)
    for ago in ("1h", "60m"):
        assert listed("--name", "to*", "--since", ago) == (names, 3)
    assert listed("--name", "t") == ([], 0)
    assert "no such jobs" in ck("status", "--state", "running").stderr
    for words, hint in (
        (("--state", "runing"), "did you mean 'running'?"),
        (("--cluster", "locl"), "did you mean 'local'?"),
        (("--state", "failed", "latest"), "clusterkit status latest"),
        (("--name", "toy", "latest"), "clusterkit status latest"),
        (("--since", "yesterday"), "--since 30m, 12h"),
        (("--watch", "--json"), "clusterkit wait JOB --json"),
    ):
        wrong = ck("status", *words)
        assert wrong.returncode == 2
        assert hint in wrong.stderr


def test_logs_of_a_command_that_runs_once_are_those_of_one_node(clusterkit: Path) -> None:
    run = make_run(clusterkit, tasks=1, once=True, now=time.time())
    files.write_text(run.log(0), "from everywhere\n")
    node_results.write_result(run, node(0), attempt=0, n_nodes=2)
    document = json.loads(ck("logs", run.run_id, "--json").stdout)
    assert [(n["node_rank"], n["text"]) for n in document["nodes"]] == [(0, "from everywhere\n")]
    assert "runs once" in ck("logs", run.run_id, "--node", "1").stderr


def test_nodes_that_ended_alike_share_a_line_and_the_worst_comes_last() -> None:
    alike = [node(rank) for rank in (1, 2, 3, 5)]
    assert endings([node(4, 3, ended=7.0), node(6, 143, "peer"), *alike]) == [
        "n[1-3,5]  exit 0 after 0 s",
        "n6        exit 143 (peer) after 0 s",
        "n4        exit 3 after 7 s",
    ]
    assert endings([]) == []


def test_an_attempt_that_runs_since_the_last_one_ended_is_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path, requeue=2)
    submission = runfolder.read_submission(run)
    running = Job(run=run, submission=submission, status=JobStatus(state=JobState.RUNNING))
    node_results.write_result(run, node(0, 1, "timeout"), attempt=0, n_nodes=2)
    assert _attempts(running, read_attempts(run)) == ["  n0  exit 1 (timeout) after 0 s"], (
        "the other node still runs"
    )
    node_results.write_result(run, node(1, 1, "timeout"), attempt=0, n_nodes=2)
    shown = ["  attempt 1 of at most 3", "    n[0-1]  exit 1 (timeout) after 0 s"]
    assert _attempts(running, read_attempts(run)) == [*shown, "  attempt 2 of at most 3: running"]
    files.write_json(run.requeued(0), {"why": "time limit"})
    assert "    put back: time limit" in _attempts(running, read_attempts(run))
    run.requeued(0).unlink()
    over = dataclasses.replace(running, status=JobStatus(state=JobState.TIMEOUT))
    assert _attempts(over, read_attempts(run)) == ["  n[0-1]  exit 1 (timeout) after 0 s"]


def test_how_long_a_job_waited_is_told_of_its_first_attempt_and_of_a_queue_since_the_last(
    tmp_path: Path,
) -> None:
    now = float(int(time.time()))
    run = make_run(tmp_path, requeue=2, submitted_at=now - 100)
    submission = runfolder.read_submission(run)
    first = dataclasses.replace(node(0, 1, "timeout"), started_at=now - 95, ended_at=now - 20)
    node_results.write_result(run, first, attempt=0, n_nodes=1)
    running = JobStatus(state=JobState.RUNNING, started_at=now - 10)
    job = Job(run=run, submission=submission, status=running)
    started, attempt = _times(job, read_attempts(run))
    assert started.startswith("  started    ")
    assert started.endswith(", after 5 s")
    assert attempt.startswith("  restarted  ")
    assert ", attempt 2; r" in attempt
    assert "; runs for 1" in attempt
    second = dataclasses.replace(first, started_at=now - 10, ended_at=now - 5)
    node_results.write_result(run, second, attempt=1, n_nodes=1)
    over = JobStatus(state=JobState.TIMEOUT, started_at=now - 10, ended_at=now - 5)
    (_, attempt) = _times(dataclasses.replace(job, status=over), read_attempts(run))
    assert attempt.startswith("  restarted  ")
    assert ", attempt 2; r" in attempt
    assert attempt.endswith("; ran for 5 s")
    waits = dataclasses.replace(job, status=JobStatus(state=JobState.REQUEUED))
    (line,) = _times(waits, read_attempts(run))
    assert float(line.split()[1]) < 60, "since its last attempt"
    lies = make_run(tmp_path, requeue=2, submitted_at=now - 100)
    node_results.write_result(lies, node(0, 1, "timeout", ended=0.0), attempt=0, n_nodes=1)
    (line,) = _times(dataclasses.replace(waits, run=lies), read_attempts(lies))
    assert line.partition(";")[0].endswith(" min so far"), "no longer than since it was submitted"


def test_a_failed_script_that_is_not_requeued_says_how_it_would_be(tmp_path: Path) -> None:
    run = make_run(tmp_path, requeue=2)
    submission = runfolder.read_submission(run)
    assert submission is not None
    failed = Job(run=run, submission=submission, status=JobStatus(state=JobState.FAILED))
    node_results.write_result(run, node(0, 1), attempt=0, n_nodes=1)
    (line,) = not_again(failed)
    assert line.endswith("--requeue 2 --requeue-on failure")
    assert len(line) <= 80
    restarted = dataclasses.replace(submission, requeue=0, restarts=1)
    (line,) = not_again(dataclasses.replace(failed, submission=restarted))
    assert line.startswith("not restarted: the script failed")
    assert line.endswith("--restarts 1 --requeue-on failure")
    for other in ({"requeue": 0}, {"requeue_on": RequeueOn.FAILURE}):
        without = dataclasses.replace(submission, **other)
        assert not not_again(dataclasses.replace(failed, submission=without))
    elastic = dataclasses.replace(submission, nodes=1, max_nodes=2)
    assert not not_again(dataclasses.replace(failed, submission=elastic)), "it is refused there"
    for attempt, why in enumerate(({"fault": "GPU011"}, {"hung": "no step for 5 min"}), 1):
        result = dataclasses.replace(node(0, 1), **why)
        node_results.write_result(run, result, attempt=attempt, n_nodes=1)
        wide = dataclasses.replace(submission, requeue=5)
        assert not not_again(dataclasses.replace(failed, submission=wide))


def test_values_of_a_sweep_are_whole_in_a_pipe_and_hide_no_reason_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = "/shared/project/experiments/2026/configurations"
    waits = JobStatus(state=JobState.PENDING, reason="after 6 has ended")
    jobs = []
    for index, name in enumerate(("a", "b")):
        values = {"config": f"{folder}/{name}.yaml", "lr": "1e-3", "note": "\x1b[31m\r\nred\u202e"}
        run = make_run(tmp_path, f"mine-{index}", array="array-1a2b3c", index=index, values=values)
        jobs.append(Job(run=run, submission=runfolder.read_submission(run), status=waits))
    _table(jobs)
    table = capsys.readouterr().out
    rows = _rows(jobs)
    for row, shown, name in zip(rows, table.splitlines()[1:], "ab", strict=True):
        whole = f"config={folder}/{name}.yaml lr=1e-3 note= [31m  red"
        assert f"  mine-{'ab'.index(name)}  {whole}  " in row
        assert shown.endswith(f" (array-1a2b3c): after 6 has ended  {whole} ")
        assert shown.isprintable()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    _table(jobs)
    for row, name in zip(_rows(jobs), "ab", strict=True):
        assert f"  config=/sh…ns/{name}.yaml lr=1e-3 note=" in row
        assert row.endswith(": after 6 has ended")
    for line in capsys.readouterr().out.splitlines()[1:]:
        assert "(array-1a2b3c): after 6 has ended" in line
        assert len(line) <= 120
    assert folder in values_text(jobs[0], whole=True)
    monkeypatch.setenv("COLUMNS", "80")
    run = make_run(tmp_path, "a-name-" + "n" * 60)
    _table([Job(run=run, submission=runfolder.read_submission(run), status=waits)])
    line = capsys.readouterr().out.splitlines()[1]
    assert line.endswith("…: after 6 has ended")
    assert len(line) <= 80


def test_what_a_node_says_of_itself_stays_in_its_line() -> None:
    """Another user's root, or a broken file, may have written it."""
    lies = dataclasses.replace(node(0, 1, "peer"), fault="GPU011\n  n3  exit 0" + " x" * 50_000)
    (line,) = endings([lies])
    for text in (line, node_results.failure_text(dataclasses.replace(lies, reason=None))):
        assert len(text) < 1100
        assert "GPU011 n3 exit 0 x" in text


def test_cancel_and_wait(clusterkit: Path) -> None:
    run = start(clusterkit, "sleep 100")
    cancelled = ck("cancel", run.run_id)
    assert cancelled.returncode == 0
    assert "cancelled" in cancelled.stdout
    assert ck("wait", run.run_id).returncode == 1
    done = start(clusterkit, "true")
    assert ck("wait", done.run_id).returncode == 0
    assert "was over already: succeeded" in ck("cancel", done.run_id).stdout
    assert "was over already: cancelled" in ck("cancel", run.run_id).stdout
    wrong = ck("cancel", run.run_id, "no-such-job")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("none of these jobs is cancelled:\nerror: ")
    both = ck("cancel", "no-such-job", run.run_id, "nor-this-one")
    assert both.returncode == 2
    assert "no-such-job" in both.stderr
    assert "nor-this-one" in both.stderr
    both = ck("wait", run.run_id, "latest", done.run_id, "--json")
    assert both.returncode == 1
    document = json.loads(both.stdout)
    assert [job["state"] for job in document["jobs"]] == ["cancelled", "succeeded"]
    assert document["counts"] == {"cancelled": 1, "succeeded": 1}
    assert "array" not in document


def test_of_several_jobs_one_that_cannot_be_ended_is_told_by_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever it is; the others are ended all the same."""

    def ended(run: RunFolder) -> Job:
        if run.run_id == runs[0].run_id:
            raise RemoteError("Slurm does not answer")
        submission = runfolder.read_submission(run)
        assert submission is not None
        return Job(run=run, submission=submission, status=JobStatus(state=JobState.CANCELLED))

    runs = [make_run(tmp_path, job_id=name) for name in ("7", "8")]
    by_name = {"7": Named(runs=(runs[0],)), "8": Named(runs=(runs[1],))}
    monkeypatch.setattr("clusterkit.cli.jobs.cancel.unfinished_named", lambda word: by_name[word])
    monkeypatch.setattr("clusterkit.cli.jobs.cancel.end", ended)
    with pytest.raises(typer.Exit) as left:
        cancel(["7", "8"])
    said = capsys.readouterr()
    assert left.value.exit_code == 2
    assert said.out.strip() == "8 (toy) cancelled"
    assert "Slurm does not answer" in said.err


def test_all_jobs_that_have_not_ended_are_cancelled_once_that_is_confirmed(
    clusterkit: Path,
) -> None:
    over = start(clusterkit, "true")
    assert ck("wait", over.run_id).returncode == 0
    runs = [start(clusterkit, "sleep 600") for _ in range(2)]
    asked = ck("cancel", "--all")
    assert asked.returncode == 2
    assert "--all would cancel 2 jobs" in asked.stderr
    assert "--yes" in asked.stderr
    assert all(f"local-{run.key}" in asked.stderr for run in runs)
    assert f"local-{over.key}" not in asked.stderr
    assert "no job to cancel" in ck("cancel", "--all", "--name", "other*").stderr
    assert "no job to cancel" in ck("cancel", "--all", "--state", "succeeded").stderr
    assert all(not run.cancelled.exists() for run in runs)
    done = ck("cancel", "--all", "--name", "to*", "--cluster", "local", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)["jobs"]
    assert [(job["job_id"], job["state"]) for job in ended] == [
        (f"local-{run.key}", "cancelled") for run in runs
    ]
    alone = start(clusterkit, "sleep 600")  # one needs no question
    assert ck("cancel", "--all").stdout.startswith(f"local-{alone.key} (toy) cancelled")


def test_the_beginning_of_a_name_cancels_nothing(clusterkit: Path) -> None:
    run = make_run(clusterkit, "train-big", job_id="9", now=time.time())
    refused = ck("cancel", "train")
    assert refused.returncode == 2
    assert refused.stderr.startswith(
        "error: no job is called 'train'; it is the beginning of 9 (train-big) "
    )
    assert refused.stderr.endswith("\nhint: clusterkit cancel 9\n")
    assert not run.cancelled.exists()
    assert ck("status", "train").stdout.startswith("9  ")
    assert not any(begins_name(word, run) for word in ("train-big", run.run_id, "9", "latest"))


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (JobState.SUCCEEDED, "has succeeded"),
        (JobState.FAILED, "has failed (exit 3): n1 exited with 3"),
        (JobState.CANCELLED, "was cancelled: n1 exited with 3"),
        (JobState.TIMEOUT, "ended by timeout (exit 3): n1 exited with 3"),
        (JobState.RUNNING, "is running"),
        (JobState.UNKNOWN, "is in state unknown"),
    ],
)
def test_the_state_of_a_job_is_told_in_a_sentence(
    clusterkit: Path, state: JobState, said: str
) -> None:
    run = make_run(clusterkit)
    submission = runfolder.read_submission(run)
    assert submission is not None
    failed = state in {JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT}
    why = {"exit_code": 3, "reason": "n1 exited with 3"} if failed else {}
    job = Job(run=run, submission=submission, status=JobStatus(state=state, **why))
    assert ESCAPES.sub("", sentence_of(job)) == said
    if state.final:
        runfolder.write_state(run, submission, job.status)
        assert f"nothing printed; the job {said}\n" in ck("logs", "7").stderr


def test_cancel_says_what_to_type_for_all_jobs(clusterkit: Path) -> None:
    start(clusterkit, "true")
    for words, hint in (
        (("all",), "clusterkit cancel --all\n"),
        (("*",), "clusterkit cancel --all\n"),
        (("x*",), "clusterkit cancel --all --name 'x*'"),
        (("--name", "x*"), "clusterkit cancel --all --name 'x*'"),
        (("--all", "latest"), "clusterkit cancel latest"),
        (("--all", "--state", "runing"), "did you mean 'running'?"),
        ((), "clusterkit cancel latest, or another"),
    ):
        wrong = ck("cancel", *words)
        assert (wrong.returncode, hint in wrong.stderr) == (2, True), wrong.stderr


def test_who_has_just_seen_the_end_of_a_log_is_not_shown_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = ["  | first", "\x1b[2m  | ValueError: x\x1b[0m", "what   it raised ValueError"]
    end = _End()
    assert [*end.of(iter(["[n1] first\n", "[n1] Value", "Error: x\n"]))][1:] == [
        "[n1] Value",
        "Error: x\n",
    ]
    assert end.without_repeated(told) == told, "the log may have gone into a file"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert end.without_repeated(told) == told[2:]
    [*end.of(iter(["other\n" * 1000]))]  # of another node, and long
    assert end.without_repeated(told) == told


def test_an_unknown_job_exits_2(clusterkit: Path) -> None:
    nothing = ck("status", "toi")
    assert nothing.returncode == 2
    assert "there are no runs" in nothing.stderr
    run = start(clusterkit, "true")
    for verb in ("status", "logs", "wait", "cancel"):
        unknown = ck(verb, run.run_id[:-1] + "x")
        assert unknown.returncode == 2
        assert f"did you mean '{run.run_id}'?" in unknown.stderr
        assert "Traceback" not in unknown.stderr


def test_ctrl_c_while_following_leaves_the_job(clusterkit: Path) -> None:
    body = "echo ready; until [[ -e $CK_RESULTS/go ]]; do sleep 0.1; done; echo done"
    run = start(clusterkit, body)
    watching = subprocess.Popen(
        [sys.executable, "-m", "clusterkit", "logs", "-f", "latest"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert watching.stdout is not None
    watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=120)
    assert watching.returncode == 130
    assert f"clusterkit logs -f local-{run.key}" in errors
    (run.results / "go").touch()
    assert ck("wait", "latest").returncode == 0
    assert "done" in run.log(0).read_text()


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ((), 0),
        ((JobState.SUCCEEDED, JobState.SUCCEEDED), 0),
        ((JobState.SUCCEEDED, JobState.UNKNOWN), 2),
        ((JobState.UNKNOWN, JobState.CANCELLED), 1),
        ((JobState.FAILED, JobState.UNKNOWN), 1),
    ],
)
def test_a_job_that_failed_counts_more_than_one_of_which_nobody_can_tell(
    tmp_path: Path, states: tuple[JobState, ...], code: int
) -> None:
    jobs = []
    for state in states:
        run = make_run(tmp_path)
        submission = runfolder.read_submission(run)
        assert submission is not None
        jobs.append(Job(run=run, submission=submission, status=JobStatus(state=state)))
    assert worst(jobs) == code


@pytest.mark.parametrize("changes", [{}, {"kind": ClusterKind.SSH, "requeue": 1}])
def test_ctrl_c_while_waiting_names_the_verb_and_who_starts_it_again(
    tmp_path: Path,
    changes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clusterkit.cli.jobs.wait.wait_for_all", interrupted)
    assert wait_for_runs([make_run(tmp_path, **changes)], verb="supervise") == 130
    said = capsys.readouterr().err
    assert "7 is not over yet; come back: clusterkit supervise 7\n" in said
    assert ("until then nobody starts it" in said) is bool(changes)


def test_several_jobs_are_come_back_to_as_they_were_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    run = make_run(tmp_path)
    named = Named(runs=(run,))
    monkeypatch.setattr("clusterkit.cli.jobs.wait.wait_for_all", interrupted)
    monkeypatch.setattr("clusterkit.cli.jobs.wait.unfinished_named", lambda _: named)
    with pytest.raises(typer.Exit):
        wait(["7", "runs/a b"])
    assert "come back: clusterkit wait 7 'runs/a b'\n" in capsys.readouterr().err


def test_wait_notices_the_end_by_itself(clusterkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within two seconds on a machine with nothing else to do: it sleeps no longer than that."""
    run = start(clusterkit, "sleep 2")
    naps = {False: 0.0, True: 0.0}

    def sleep(seconds: float) -> None:
        naps[len(node_results.read_results(run).nodes) == 2] += seconds
        time.sleep(seconds)

    monkeypatch.setattr(watch_module, "time", SimpleNamespace(**vars(time) | {"sleep": sleep}))
    assert ck("wait", "latest").returncode == 0
    assert naps[False] > 0
    assert naps[True] <= 2
