"""Jobs of which nobody has an id: what sbatch's answers prove, and how such a job is found."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterkit.core.commands import Answer
from clusterkit.core.errors import RemoteError
from clusterkit.core.model import JobState
from clusterkit.executors.base import RefusalError, UnconfirmedError
from clusterkit.executors.run import runfolder, submit_journal
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.run.submit_journal import Handing, ProcessId
from clusterkit.executors.slurm import lost_jobs
from clusterkit.executors.slurm.refusals import refusal
from clusterkit.jobs.state.load import Job, load_job
from clusterkit.jobs.watch import cancel
from tests.unit.executors.test_executors_slurm import SBATCH, Fake, fake, slurm_plan, submit

__all__ = ["fake"]

FAILED = "sbatch: error: Batch job submission failed: "
REFUSED = [
    f"{FAILED}Invalid partition name specified",
    f"{FAILED}User's group not permitted to use this partition",
    f"{FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time",
    f"{FAILED}Job dependency problem",
    f"sbatch: error: Slurm job queue full, sleeping\n{FAILED}MaxJobCount limit reached",
    f"sbatch: error: you have to say --account, or write to help@site\n{FAILED}Unspecified error",
    "sbatch: unrecognized option '--exclusve'\nTry \"sbatch --help\" for more information",
    "sbatch: error: Invalid --mail-type specification",
    "sbatch: error: Unable to open file /x/job.sbatch",
    "sbatch: error: cli_filter plugin terminated with error",
    "sbatch: fatal: Invalid node list specified",
]
OPEN = [
    f"{FAILED}Socket timed out on send/recv operation",
    f"{FAILED}Unable to contact slurm controller (connect failure)",
    f"{FAILED}Zero Bytes were transmitted or received",
    f"{FAILED}Unexpected message received",
    f"{FAILED}Message receive failure",
    f"{FAILED}Header lengths are longer than data received",
    f"{FAILED}Slurm backup controller in standby mode",
    f"{FAILED}Protocol authentication error",
    f"{FAILED}Invalid authentication credential",
    f"{FAILED}Connection reset by peer",
    f"{FAILED}Resource temporarily unavailable",
    f"{FAILED}Rate limit exceeded, please retry momentarily",
    f"{FAILED}Connection timed out reading",
    f"{FAILED}Something that only the next release says",
    f"{FAILED}",
    f"sbatch: error: Zero Bytes were transmitted\n{FAILED}Invalid partition name specified",
    "sbatch: error: If munged is up, restart with --num-threads=10",
    "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
    "site-sbatch: charged 12 hours; cannot write the log",
    "",
]


@pytest.mark.parametrize("errors", REFUSED)
def test_an_error_about_the_request_proves_a_refusal(errors: str, tmp_path: Path) -> None:
    said = refusal(Answer(code=1, errors=errors), slurm_plan(tmp_path), tmp_path)
    assert isinstance(said, RefusalError)
    last = errors.partition("\nTry ")[0].splitlines()[-1]
    assert last.removeprefix("sbatch: ").removeprefix("error: ") in said.message


@pytest.mark.parametrize("errors", OPEN)
def test_an_error_of_communication_proves_nothing(errors: str, tmp_path: Path) -> None:
    assert refusal(Answer(code=1, errors=errors), slurm_plan(tmp_path), tmp_path) is None


@pytest.mark.parametrize("code", [0, -9, 124, 126, 127, 130, 137, 143])
def test_an_sbatch_that_did_not_end_by_itself_proves_nothing(code: int, tmp_path: Path) -> None:
    plan = slurm_plan(tmp_path)
    assert refusal(Answer(code=code, errors=REFUSED[0]), plan, tmp_path) is None
    accepted = Answer(code=1, errors=REFUSED[0], output="welcome\n4711;west\n")  # and --wait
    assert refusal(accepted, plan, tmp_path) is None
    never_run = Answer(code=127, errors="sbatch: command not found", ran=False)
    assert refusal(never_run, plan, tmp_path) is not None


def lists(fake: Fake, *rows: str) -> None:
    """Let squeue list rows `ID|COMMAND|COMMENT`, whatever else it is asked."""
    listed = "\n".join(f"echo '{row}'" for row in rows) or ":"
    states = "\n".join(
        f"echo '{'|'.join([row.split('|')[0], 'PENDING', 'x', 'N/A', 'UNLIMITED'])}|'"
        for row in rows
    )
    script = states.replace("|'", '|\'"$(cat "${0%/*}/script" 2>/dev/null)"')
    fake("squeue", f'case "$*" in *" -j "*)\n{script} ;;\n*)\n{listed} ;;\nesac')


def silent(fake: Fake) -> None:
    fake("squeue", 'echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1')


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SILENT_S", "_UNLISTED_S", "_PAUSE_S"):
        monkeypatch.setattr(lost_jobs, name, 0.0)


def unconfirmed(fake: Fake, tmp_path: Path, body: str = f"echo '{OPEN[0]}' >&2; exit 1") -> Job:
    """Return a job after an answer that proves nothing, while Slurm lists no such job."""
    fake("sbatch", body)
    with pytest.raises(UnconfirmedError, match="nobody can tell yet") as caught:
        submit(slurm_plan(tmp_path))
    run = caught.value.run
    assert f"clusterkit status {run.key}" in (caught.value.hint or "")
    script = tmp_path / "bin" / "script"
    script.write_text(str(run.path / "job.sbatch"))
    return load_job(run)


def age(run: RunFolder, seconds: float) -> None:
    """Let what was noted of handing the job over be older."""
    noted = submit_journal.read(run)
    assert noted is not None
    moments = ("began_at", "at", "answered_at", "missing_since")
    older = {name: getattr(noted, name) and getattr(noted, name) - seconds for name in moments}
    document = dataclasses.asdict(dataclasses.replace(noted, **older))
    run.handing.write_text(json.dumps(document))


@pytest.mark.usefixtures("hasty")
def test_a_job_that_runs_after_a_time_out_is_found_by_its_comment(
    fake: Fake, tmp_path: Path
) -> None:
    silent(fake)
    job = unconfirmed(fake, tmp_path)
    assert (job.status.state, job.submission.job_id) == (JobState.UNKNOWN, None)
    assert "Unable to contact slurm controller" in (job.status.reason or "")
    assert "Socket timed out on send/recv operation" in (job.status.reason or "")
    assert "hint" not in (job.status.reason or "")
    age(job.run, 7200)
    assert load_job(job.run).status.state is JobState.UNKNOWN  # however long Slurm is silent
    lists(fake, "8|/x|clusterkit:other", f"9|/elsewhere/script|{lost_jobs.comment_of(job.run)}")
    job = load_job(job.run)
    assert (job.status.state, job.submission.job_id) == (JobState.PENDING, "9")


@pytest.mark.usefixtures("hasty")
def test_sbatch_is_asked_once_and_its_job_found_at_once(fake: Fake, tmp_path: Path) -> None:
    comment = 'for word; do case "$word" in --comment=*) echo "${word#--comment=}"; esac; done'
    fake("sbatch", f"({comment}) >>{tmp_path}/asked; echo '{OPEN[0]}' >&2; exit 1")
    fake("squeue", f'echo "12|/x|$(cat {tmp_path}/asked)"')
    _, submission, messages = submit(slurm_plan(tmp_path))
    assert submission.job_id == "12"
    assert "Socket timed out" in messages[0]
    assert len((tmp_path / "asked").read_text().splitlines()) == 1


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    "body", ["exit 0", "echo thank you", "kill -9 $$", "echo oops >&2; exit 3", "echo 7; exit 1"]
)
def test_after_any_other_answer_slurm_has_the_last_word(
    fake: Fake, tmp_path: Path, body: str
) -> None:
    lists(fake)
    job = unconfirmed(fake, tmp_path, body)
    assert job.status.state is JobState.UNKNOWN
    assert "within" in (job.status.reason or "")
    age(job.run, 60)
    job = load_job(job.run)
    assert job.status.state is JobState.FAILED
    assert "never submitted" in (job.status.reason or "")
    assert job.run.cancelled.exists()  # should it come all the same, it ends at its start


@pytest.mark.usefixtures("hasty")
def test_what_slurm_may_have_forgotten_is_not_told_as_never_submitted(
    fake: Fake, tmp_path: Path
) -> None:
    silent(fake)
    job = unconfirmed(fake, tmp_path)
    age(job.run, 3600)
    lists(fake)
    status = load_job(job.run).status
    assert status.state is JobState.FAILED
    assert (status.reason or "").startswith("never ran: ")


@pytest.mark.usefixtures("hasty")
def test_an_sbatch_that_hangs_is_no_refusal(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterkit.executors.run.submit_journal.SBATCH_TIMEOUT_S", 0.5)
    lists(fake)
    job = unconfirmed(fake, tmp_path, "exec sleep 300")
    assert "no answer in" in (job.status.reason or "")


@pytest.mark.usefixtures("hasty")
def test_only_jobs_of_this_user_are_looked_at(fake: Fake, tmp_path: Path) -> None:
    lists(fake)
    job = unconfirmed(fake, tmp_path)
    fake("squeue", f'echo "$@" >>{tmp_path}/asked')
    fake("sacct", f'echo "$@" >>{tmp_path}/asked')
    load_job(job.run)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 2
    assert all(f"-u {os.geteuid()} " in line for line in asked)


@pytest.mark.usefixtures("hasty")
def test_the_first_of_several_is_ours(fake: Fake, tmp_path: Path) -> None:
    """A script that somebody submits again by hand has the same path, and not our comment."""
    lists(fake)
    job = unconfirmed(fake, tmp_path)
    script, comment = job.run.path / "job.sbatch", lost_jobs.comment_of(job.run)
    wanted = {job.run: job.submission}
    lists(fake, f"11|{script}|a|b", f"12|{script}|(null)", f"13|/x|y|{comment}")
    assert lost_jobs.find(wanted) == {job.run: "13"}
    lists(fake, f"11|{script}|a|b", f"12|{script}|(null)")
    assert lost_jobs.find(wanted) == {job.run: "11"}


@pytest.mark.usefixtures("hasty")
def test_a_job_that_slurm_has_forgotten_is_known_by_its_log_or_by_accounting(
    fake: Fake, tmp_path: Path
) -> None:
    lists(fake)
    job = unconfirmed(fake, tmp_path)
    wanted = {job.run: job.submission}
    mark = f"--comment={lost_jobs.comment_of(job.run)}"
    fake("sacct", f"echo '3|sbatch --parsable {mark}2 /x'; echo '5|sbatch {mark} /x'")
    assert lost_jobs.find(wanted) == {job.run: "5"}
    (job.run.submitit / "6_batch.out").touch()
    assert lost_jobs.find(wanted) == {job.run: "6"}


@pytest.mark.usefixtures("hasty")
def test_a_comment_of_ones_own_stays(fake: Fake, tmp_path: Path) -> None:
    fake("sbatch", SBATCH)
    run, _, _ = submit(slurm_plan(tmp_path, directives={"comment": "project 7"}))
    assert "--comment" not in (run.path / "seen-args").read_text()


@pytest.mark.usefixtures("hasty")
def test_cancel_ends_a_job_without_an_id_as_soon_as_it_is_found(fake: Fake, tmp_path: Path) -> None:
    silent(fake)
    job = unconfirmed(fake, tmp_path)
    with pytest.raises(RemoteError, match="Slurm does not answer") as caught:
        cancel(job.run, timeout_s=1)
    assert f"clusterkit status {job.run.key}" in (caught.value.hint or "")
    assert load_job(job.run).status.state is JobState.UNKNOWN
    fake("scancel", f'echo "$@" >>{tmp_path}/ended')
    lists(fake, f"9|/x|{lost_jobs.comment_of(job.run)}")
    assert load_job(job.run).status.state is JobState.PENDING
    assert (tmp_path / "ended").read_text() == "9\n"


def client_of(run: RunFolder, **changes: object) -> None:
    noted = Handing(client=ProcessId.own(), began_at=time.time())
    noted = dataclasses.replace(noted, **changes)
    run.handing.write_text(json.dumps(dataclasses.asdict(noted)))


def test_who_is_interrupted_before_the_id_is_noted_is_told_not_to_submit_again(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("sbatch", SBATCH)
    write = runfolder.write_submission

    def interrupted(run: RunFolder, submission: runfolder.Submission) -> None:
        if submission.job_id is not None:
            raise KeyboardInterrupt
        write(run, submission)

    monkeypatch.setattr(runfolder, "write_submission", interrupted)
    with pytest.raises(KeyboardInterrupt, match="do not submit it again: clusterkit status"):
        submit(slurm_plan(tmp_path))


def test_a_client_that_was_killed_before_sbatch_has_submitted_nothing(
    fake: Fake, tmp_path: Path
) -> None:
    fake("sbatch", SBATCH)
    run, submission, _ = submit(slurm_plan(tmp_path))
    runfolder.write_submission(run, dataclasses.replace(submission, job_id=None))
    lists(fake)
    client_of(run)
    assert load_job(run).status.reason == "being submitted"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        other = dataclasses.replace(ProcessId.own(), pid=process.pid)
        client_of(run, client=other)  # the same number, and another start
        assert load_job(run).status.state is JobState.FAILED
        run.state.unlink()
        run.cancelled.unlink()
        start = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        client_of(run, client=dataclasses.replace(other, start_time=start))
        assert load_job(run).status.state is JobState.PENDING
        silent(fake)
        process.send_signal(signal.SIGKILL)
        process.wait()
    status = load_job(run).status
    assert status.state is JobState.FAILED
    assert status.reason is not None
    assert status.reason.startswith(f"never submitted: its client (process {process.pid} on ")


def test_a_client_that_was_stopped_is_still_there(fake: Fake, tmp_path: Path) -> None:
    """By Ctrl-Z, say, for longer than any question to Slurm takes."""
    fake("sbatch", SBATCH)
    run, submission, _ = submit(slurm_plan(tmp_path))
    runfolder.write_submission(run, dataclasses.replace(submission, job_id=None))
    lists(fake)
    client_of(run, began_at=time.time() - 3600)
    assert load_job(run).status.reason == "being submitted"
    assert not run.cancelled.exists()


def test_a_client_elsewhere_is_given_its_time(fake: Fake, tmp_path: Path) -> None:
    fake("sbatch", SBATCH)
    run, submission, _ = submit(slurm_plan(tmp_path))
    runfolder.write_submission(run, dataclasses.replace(submission, job_id=None))
    lists(fake)
    client_of(run, client=dataclasses.replace(ProcessId.own(), boot_id="elsewhere", host="n9"))
    assert load_job(run).status.state is JobState.PENDING
    age(run, 300)
    assert load_job(run).status.state is JobState.UNKNOWN
    age(run, 3600)
    status = load_job(run).status
    assert status.state is JobState.UNKNOWN
    assert "look on n9" in (status.reason or "")
    assert not run.cancelled.exists()


def test_an_sbatch_that_outlives_its_client_is_waited_for(fake: Fake, tmp_path: Path) -> None:
    fake("sbatch", SBATCH)
    run, submission, _ = submit(slurm_plan(tmp_path))
    runfolder.write_submission(run, dataclasses.replace(submission, job_id=None))
    lists(fake)
    dead = dataclasses.replace(ProcessId.own(), start_time="1")
    client_of(run, client=dead, at=1000.0)
    command = [sys.executable, "-c", "input()", "--parsable", str(run.path / "job.sbatch")]
    with subprocess.Popen(command, stdin=subprocess.PIPE):
        assert load_job(run).status.reason == "being submitted"
    assert load_job(run).status.state is JobState.FAILED
