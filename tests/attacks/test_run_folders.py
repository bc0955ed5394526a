"""Run folders that another user has prepared: their files are read, and nothing else is done."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import clusterkit as api
from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterKind, JobState, JobStatus
from clusterkit.executors import executor_of
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh.agent_files import read_agents
from clusterkit.jobs.find import find_run, list_runs, runs_of_others
from clusterkit.jobs.logs import read_logs
from clusterkit.jobs.start_queued import start_due
from clusterkit.jobs.state.load import load_job, load_jobs, states_of
from clusterkit.jobs.watch import cancel, wait
from tests.attacks import runs
from tests.attacks.runs import STRANGER, Trap, bystander, clusterkit, control, prepare
from tests.helpers.measured import wait_measured
from tests.helpers.plans import make_cluster

pytestmark = pytest.mark.needs("root")
WHOSE = f"belongs to user {STRANGER}"
READING = {
    "status": ["status", "RUN"],
    "status as JSON": ["status", "RUN", "--json"],
    "logs": ["logs", "RUN"],
    "logs as JSON": ["logs", "RUN", "--json", "--tail", "5"],
    "diagnose": ["diagnose", "RUN"],
    "top": ["top", "RUN", "--once"],
    "bench": ["bench", "collectives", "--from", "RUN"],
}
ACTING = {
    "cancel": ["cancel", "RUN"],
    "wait": ["wait", "RUN"],
    "supervise": ["supervise", "RUN"],
    "stacks": ["diagnose", "--stacks", "RUN"],
    "after": ["submit", "--framework", "torchrun", "--after", "RUN", "train.py"],
}


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    """What tells that something was run, and a script to be submitted."""
    trap = runs.make_trap(tmp_path / "trap")
    (trap.folder / "train.py").write_text("print('trained')\n")
    yield trap
    trap.listener.close()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder of root in which everybody may keep runs, as on a shared file system."""
    folder = tmp_path / "runs"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.mark.parametrize("verb", [*READING, *ACTING])
def test_no_verb_does_more_with_a_strangers_run_than_read_it(
    verb: str, shared: Path, trap: Trap
) -> None:
    run = prepare(shared, trap, ClusterKind.SSH)
    runs.hold(run, trap)
    secret = trap.folder / "victims-own"
    secret.write_text("do not touch\n")
    run.log(1).symlink_to(secret)
    runs.give(run.path, STRANGER)
    before = runs.state_of(shared), runs.state_of(secret)
    words = [word.replace("RUN", str(run.path)) for word in {**READING, **ACTING}[verb]]
    done = clusterkit(trap, shared, *words)
    assert trap.caught() == []
    assert (runs.state_of(shared), runs.state_of(secret)) == before
    assert "Traceback" not in done.stderr
    assert "do not touch" not in done.stdout
    if verb in ACTING:
        assert done.returncode == 2, done.stderr
        assert f"{run.path} {WHOSE}: clusterkit will not " in done.stderr
    elif verb != "bench":
        assert f"this run {WHOSE}: only its files were read" in done.stderr
    if verb == "logs":
        assert "loss 1.0" in done.stdout
    if verb == "status as JSON":
        assert json.loads(done.stdout)["foreign"] == f"{run.path} {WHOSE}"


@pytest.mark.parametrize("kind", [ClusterKind.SLURM, ClusterKind.LOCAL])
@pytest.mark.parametrize("verb", ["status", "wait", "cancel"])
def test_nor_is_a_scheduler_asked_or_a_process_ended(
    verb: str, kind: ClusterKind, shared: Path, trap: Trap
) -> None:
    run = prepare(shared, trap, kind, job_id="--me" if verb == "cancel" else None)
    if kind is ClusterKind.LOCAL:
        runs.hold(run, trap)
    for process in bystander(run):
        control(run, process.pid)
        runs.give(run.path, STRANGER)
        before = runs.state_of(shared)
        done = clusterkit(trap, shared, verb, str(run.path))
        assert trap.caught() == []
        assert runs.state_of(shared) == before
        assert process.poll() is None
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_python_is_refused_as_well(shared: Path, trap: Trap) -> None:
    run = prepare(shared, trap, ClusterKind.SSH)
    runs.hold(run, trap)
    runs.give(run.path, STRANGER)
    before = runs.state_of(shared)
    job = api.find_job(str(run.path))
    assert job.state == "unknown"
    assert "loss 1.0" in job.logs()
    for act in (job.cancel, job.wait):
        with pytest.raises(UserError, match=WHOSE):
            act()
    found = load_job(run)
    assert WHOSE in (found.status.reason or "")
    with pytest.raises(UserError, match="will not start its job"):
        executor_of(run, found.submission, use="start its job")
    assert start_due([found]) is None, "nothing that its files say makes it a job to be started"
    assert (trap.caught(), runs.state_of(shared)) == ([], before)


def test_a_state_that_a_stranger_wrote_starts_nothing_of_ours(shared: Path, trap: Trap) -> None:
    run = prepare(shared, trap, ClusterKind.LOCAL)
    submission = runfolder.read_submission(run)
    assert submission is not None
    runfolder.write_state(run, submission, JobStatus(state=JobState.SUCCEEDED, exit_code=0))
    runs.give(run.path, STRANGER)
    assert load_job(run).status.state is JobState.SUCCEEDED, "as its files say"
    assert states_of([run]) == {str(run.path): JobState.UNKNOWN}, "which nothing is built on"


def test_words_mean_our_own_runs_first_and_never_let_us_act_on_others(
    shared: Path, trap: Trap
) -> None:
    own = prepare(shared, trap, ClusterKind.LOCAL, uid=0)
    theirs = prepare(shared, trap, ClusterKind.LOCAL)
    later = RunFolder(shared / theirs.run_id.replace("toy-2", "toy-9"))
    theirs.path.rename(later.path)
    runs.give(later.path, STRANGER)
    assert list_runs([shared]) == [own]
    assert runs_of_others([shared]) == [later]
    for word in ("latest", "toy", "toy-", own.run_id, own.key, f"local-{own.key}"):
        assert find_run(word, [shared]) == own
    assert find_run(later.run_id, [shared]) == later
    with pytest.raises(UserError, match=f"{WHOSE}: clusterkit will not end its job"):
        cancel(find_run(f"local-{later.key}", [shared]))
    done = clusterkit(trap, shared, "status")
    assert own.key in done.stdout
    assert later.key not in done.stdout
    assert "1 run of other users not shown" in done.stderr


def test_a_strangers_array_takes_in_none_of_ours(shared: Path, trap: Trap) -> None:
    own = prepare(shared, trap, ClusterKind.LOCAL, uid=0, array="array-abcdef", index=0)
    prepare(shared, trap, ClusterKind.LOCAL, array="array-abcdef", index=1)
    from clusterkit.jobs.find import find_runs  # noqa: PLC0415

    assert find_runs("array-abcdef", [shared]).runs == (own,)


def test_a_strangers_link_gives_no_run_of_ours_another_name(shared: Path, trap: Trap) -> None:
    own = prepare(shared, trap, ClusterKind.LOCAL, uid=0)
    link = shared / "other-20300101-000000-aaaaaa"
    link.symlink_to(own.path)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    assert list_runs([shared]) == [own]
    assert runs_of_others([shared]) == []
    moved = shared.parent / own.run_id
    own.path.rename(moved)
    (shared / own.run_id).symlink_to(moved)  # as one's own, to a larger disk
    assert list_runs([shared]) == [RunFolder(moved)]


@pytest.mark.parametrize("name", ["submission.json", "keepers", "ssh.json", "logs", "held"])
def test_our_own_run_with_a_part_of_somebody_else_is_not_acted_upon(
    name: str, shared: Path, trap: Trap
) -> None:
    run = prepare(shared, trap, ClusterKind.SSH, uid=0)
    runs.hold(run, trap)
    os.chown(run.path / name, STRANGER, STRANGER)
    before = runs.state_of(shared)
    job = load_job(run)
    assert job.status.state is JobState.UNKNOWN
    assert job.status.reason == f"{run.path / name} {WHOSE}: only its files were read"
    for act in (cancel, wait):
        with pytest.raises(UserError, match=WHOSE):
            act(run)
    assert (trap.caught(), runs.state_of(shared)) == ([], before)


@pytest.mark.parametrize("mode", [0o777, 0o775])
@pytest.mark.parametrize("name", [".", "submission.json", "nodes", ".."])
def test_nor_is_one_that_others_can_write(name: str, mode: int, shared: Path, trap: Trap) -> None:
    run = prepare(shared, trap, ClusterKind.SSH, uid=0)
    place = run.path / name
    os.chown(place, 0, STRANGER)
    place.chmod(mode)
    with pytest.raises(UserError, match=r"can be written by (everybody|the group 54321)") as caught:
        cancel(run)
    assert f"chmod go-w {run.path}" in str(caught.value.problems[0].hint) or name == ".."
    assert trap.caught() == []


def test_no_node_is_asked_with_what_others_can_write(shared: Path, trap: Trap) -> None:
    run = prepare(shared, trap, ClusterKind.SSH, uid=0)
    about = json.loads(run.agent(0).read_text())
    files.write_json(run.agent(0), {**about, "start_time": "1", "boot_id": "0" * 32})
    assert len(read_agents(run)) == 1, "whole, and nobody else's"
    run.agent(0).chmod(0o666)
    assert read_agents(run) == ()


def test_no_job_is_started_where_others_could_exchange_its_files(tmp_path: Path) -> None:
    place = tmp_path / "runs"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(UserError, match="can be written by everybody"):
        runfolder.create(make_cluster(place), "toy")
    os.chown(place, STRANGER, STRANGER)
    place.chmod(0o1777)
    with pytest.raises(UserError, match=WHOSE) as caught:
        runfolder.create(make_cluster(place), "toy")
    assert caught.value.problems[0].hint == "set `run_dir` to a folder of your own"
    assert list(place.iterdir()) == []
    os.chown(place, 0, 0)
    assert runfolder.create(make_cluster(place), "toy").foreign is None


def test_a_process_is_only_ended_that_says_itself_that_it_controls_the_run(
    shared: Path, trap: Trap
) -> None:
    run = prepare(shared, trap, ClusterKind.LOCAL, uid=0)
    for posing in (False, True):
        for process in bystander(run, posing=posing):
            (run.path / "ended.json").unlink(missing_ok=True)
            (run.path / "state.json").unlink(missing_ok=True)
            control(run, process.pid)
            assert cancel(run).status.state is JobState.CANCELLED
            assert process.poll() is None


@pytest.mark.parametrize("pid", [-1, 0, 1, True, 2**40, "7", 1.0, None])
def test_no_number_in_a_file_is_a_group_of_processes(
    pid: object, shared: Path, trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepare(shared, trap, ClusterKind.LOCAL, uid=0)
    control(run, os.getpid())
    files.write_json(run.controller, {**json.loads(run.controller.read_text()), "pid": pid})
    killed = []
    monkeypatch.setattr("clusterkit.core.processes.send", lambda *words: killed.append(words))
    load_job(run)
    assert killed == []


@pytest.mark.parametrize("job_id", ["--me", "-u", "1,2", "1 2", "", "1\n", "²", 7, "9" * 99])
def test_no_scheduler_hears_what_is_no_job_id(job_id: object, shared: Path, trap: Trap) -> None:
    run = prepare(shared, trap, ClusterKind.SLURM, uid=0, job_id=job_id)
    assert runfolder.read_submission(run) is None
    with pytest.raises(UserError, match="is damaged"):
        cancel(run)
    assert trap.caught() == []


def test_links_in_our_own_run_lead_nowhere(shared: Path, trap: Trap) -> None:
    run = prepare(shared, trap, ClusterKind.SLURM, uid=0)
    secret = trap.folder / "victims-own"
    secret.write_text("do not show\n")
    run.log(0).unlink()
    run.log(0).symlink_to(secret)
    assert "".join(read_logs(run)) == ""
    outside = trap.folder / "nodes"
    run.nodes.rename(outside)
    run.nodes.symlink_to(outside)
    (outside / "node-0-attempt-0.json").write_text("{}")
    assert runfolder.listed(run.nodes) == frozenset()
    run.submission.rename(outside / "submission.json")
    run.submission.symlink_to(outside / "submission.json")
    assert runfolder.read_submission(run) is None


def _nested(run: RunFolder) -> None:
    run.plan.write_text("[" * 4_000_000)
    run.state.write_text('{"status":' * 300_000)


def _endless(run: RunFolder) -> None:
    for path in (run.log(0), run.state, run.result(0), run.failures / "0.json", run.plan):
        with path.open("wb") as stream:
            stream.truncate(10 << 30)


def _pipes(run: RunFolder) -> None:
    for path in (run.log(0), run.log(1), run.state, run.plan, run.result(0), run.submission):
        path.unlink(missing_ok=True)
        os.mkfifo(path)


def _devices(run: RunFolder) -> None:
    for path in (run.log(0), run.state, run.result(0)):
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/zero")


def _garbage(run: RunFolder) -> None:
    known = json.loads(run.submission.read_text())
    text = json.dumps({**known, "name": "\ud800\x1b]0;owned\x07", "submitted_at": 1e300})
    run.submission.write_text(text)
    run.plan.write_bytes(b'{"slots": "\xff\xfe"}')
    run.log(0).write_bytes(b"\xff\x00\x9b2J\x1b[2J\x1b]0;owned\x07" * 9999)
    for name in ("node-²-attempt-0.json", "node-0-attempt-99999999999.json"):
        (run.nodes / name).write_text('{"exit_code": 1' + "0" * 5000 + "}")


def _crowd(run: RunFolder) -> None:
    result = {"node_rank": 0, "node": "n", "exit_code": 1, "started_at": 0, "ended_at": 1}
    text = json.dumps({**result, "tail": ["x" * 4000] * 900})
    for rank in range(300):
        run.result(rank).write_text(text.replace('"node_rank": 0', f'"node_rank": {rank}'))


def _dumps(run: RunFolder) -> None:
    run.results.mkdir(exist_ok=True)
    dump = "flight-recorder-0-rank-{}"
    begin = b"\x80\x02X\x01\x00\x00\x00aq\x00}q\x01"
    every = (b"]", b"N", b"h\x00", b"\x94", b"h\x01h\x01u}q\x01", b"(", b"M\xff\xff")
    for rank, text in enumerate(every):
        whole = begin + text * ((1 << 24) // len(text) - 32)
        (run.results / dump.format(rank)).write_bytes(whole)
    (run.results / dump.format(8)).symlink_to("/dev/zero")
    os.mkfifo(run.results / dump.format(9))


@pytest.mark.parametrize("spoil", [_nested, _endless, _pipes, _devices, _garbage, _crowd, _dumps])
def test_files_of_any_kind_and_size_hold_up_nobody(spoil: object, shared: Path, trap: Trap) -> None:
    run = prepare(shared, trap, ClusterKind.SLURM)
    assert callable(spoil)
    spoil(run)
    runs.give(run.path, STRANGER)
    output = trap.folder / "output"
    for verb in ("status", "logs", "diagnose"):
        with output.open("wb") as stream:
            process = subprocess.Popen(
                runs.command(verb, str(run.path)), env=runs.environment(trap, shared),
                cwd=trap.folder, stdout=stream, stderr=stream,
            )  # fmt: skip
            used = wait_measured(process, within_s=120)
        printed = output.read_bytes()
        assert process.returncode in {0, 1, 2}, (verb, printed[-2000:])
        assert b"Traceback" not in printed, verb
        assert b"\x1b" not in printed, verb
        assert used.memory_mib < 300, verb
        assert used.cpu_s < 20, f"{verb}: seconds of a processor"
        assert trap.caught() == [], verb


def test_many_runs_of_others_cost_our_own_list_nothing(shared: Path, trap: Trap) -> None:
    own = prepare(shared, trap, ClusterKind.LOCAL, uid=0)
    for number in range(500):
        path = shared / f"x-20300101-000000-{number:06x}"
        path.mkdir()
        os.mkfifo(path / "submission.json")
        os.chown(path, STRANGER, STRANGER)
    assert [job.run for job in load_jobs(list_runs([shared]))] == [own]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20
