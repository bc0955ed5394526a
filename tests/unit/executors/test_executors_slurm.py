"""Slurm: the parsers, sbatch's refusals, and the contract with submitit, under fake commands."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusterkit.cli.diagnose.report import last_words
from clusterkit.cli.frame.main import app
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import ClusterKind, GpuRequest, JobState, LaunchPlan, RenderedFile
from clusterkit.core.shell import Secret
from clusterkit.executors import executor_for, submit_plan
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.slurm import limits as slurm_limits
from clusterkit.executors.slurm import lost_jobs, pending, states
from clusterkit.executors.slurm.forecast import forecast
from clusterkit.executors.slurm.states import Query, parse_sacct, parse_squeue, state_of
from clusterkit.jobs.document import batch_output, full_document_of, logs_document
from clusterkit.jobs.find import find_run
from clusterkit.jobs.state.load import load_job, load_jobs
from clusterkit.jobs.submit.preflight import SubmitCallbacks
from clusterkit.jobs.submit.request import JobRequest
from clusterkit.jobs.submit.submit import Prepared, check
from clusterkit.observe.diagnose.job import diagnose_job
from clusterkit.observe.diagnose.rules import load_rules
from clusterkit.preflight import gate
from tests.helpers.needs import lack
from tests.helpers.paths import ROOT
from tests.helpers.plans import make_cluster, make_plan, node_script

SCRIPT = Path("/runs/a b|c/job.sbatch")
WANTED = {"7": Query(script=SCRIPT, name="toy", since=0.0)}
PARTITION = (
    "PartitionName=gpu AllowGroups=ALL Default=YES MaxNodes=4 MaxTime=1-02:00:00 "
    "Nodes=n[1-3] State=UP TotalCPUs=24 TotalNodes=3\n"
)
SINFO = "n1|idle|gpu:4\nn2|mixed|gpu:a100:8(S:0-1),shard:a100:16(S:0)\nn3|idle~|(null)\n"

Fake = Callable[..., Path]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put commands of one's own first on PATH; by default no Slurm command is there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("bash", "env", "cat", "sleep"):
        for place in ("/usr/bin", "/bin"):
            if Path(place, tool).exists() and not (folder / tool).exists():
                (folder / tool).symlink_to(Path(place, tool))
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, body: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/bash\n{textwrap.dedent(body)}")
        path.chmod(0o755)
        return path

    return make


def slurm_plan(tmp_path: Path, **changes: object) -> LaunchPlan:
    cluster = make_cluster(
        tmp_path / "runs 100%", name="c", kind=ClusterKind.SLURM, gpu_request=GpuRequest.GRES
    )
    return make_plan(cluster, **changes)


def submit(plan: LaunchPlan, **secrets: Secret) -> tuple[RunFolder, Submission, tuple[str, ...]]:
    run = runfolder.create(plan.cluster, plan.name)
    files = [node_script("true"), RenderedFile(name="job.sbatch", text="#!/bin/bash\n# ours\n")]
    submission, launched = submit_plan(plan, files, run, secrets=secrets, command_line=[])
    return run, submission, launched.messages


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PENDING", JobState.PENDING),
        ("CONFIGURING", JobState.PENDING),
        ("RESV_DEL_HOLD", JobState.PENDING),
        ("RUNNING", JobState.RUNNING),
        ("COMPLETING", JobState.RUNNING),
        ("COMPLETED", JobState.SUCCEEDED),
        ("CANCELLED by 1000", JobState.CANCELLED),
        ("CANCELLED+", JobState.CANCELLED),
        ("TIMEOUT", JobState.TIMEOUT),
        ("DEADLINE", JobState.TIMEOUT),
        ("PREEMPTED", JobState.PREEMPTED),
        ("NODE_FAIL", JobState.FAILED),
        ("OUT_OF_MEMORY", JobState.FAILED),
        ("BOOT_FAIL", JobState.FAILED),
        ("REQUEUED", JobState.REQUEUED),
        ("REQUEUE_HOLD", JobState.REQUEUED),
        ("SPECIAL_EXIT", JobState.REQUEUED),
        ("EXPEDITING", JobState.REQUEUED),
        ("SOMETHING_NEW", JobState.UNKNOWN),
        ("", JobState.UNKNOWN),
    ],
)
def test_slurms_states(word: str, state: JobState) -> None:
    assert state_of(word).state is state


def test_squeue_rows_are_ours_only_with_our_script() -> None:
    ours = f"7|RUNNING|None|N/A|30:00|{SCRIPT}\n"
    assert parse_squeue(ours, WANTED)["7"].state is JobState.RUNNING
    assert parse_squeue("7|RUNNING|None|N/A|30:00|/somebody/else.sh\n", WANTED) == {}
    assert parse_squeue("slurm_load_jobs error: nonsense\n\n7|\n", WANTED) == {}
    pending = parse_squeue(f"7|PENDING|Resources|N/A|30:00|{SCRIPT}\n", WANTED)["7"]
    assert (pending.state, pending.reason) == (JobState.PENDING, "Resources")
    assert pending.start is None
    expected = parse_squeue(f"7|PENDING|Resources|2026-11-27T20:15:00|30:00|{SCRIPT}\n", WANTED)[
        "7"
    ]
    local = time.mktime((2026, 11, 27, 20, 15, 0, 0, 0, -1))
    assert (expected.start, expected.limit_s) == (local, 1800)
    endless = parse_squeue(f"7|RUNNING|None|N/A|UNLIMITED|{SCRIPT}\n", WANTED)["7"]
    assert endless.limit_s is None


def test_a_component_that_was_cancelled_by_itself_is_named() -> None:
    def state(first: str, second: str) -> tuple[JobState, str | None]:
        rows = f"7+1|{second}|None|N/A|30:00|{SCRIPT}\n"
        rows += f"7+0|{first}|NonZeroExitCode|N/A|30:00|{SCRIPT}\n"
        (found,) = parse_squeue(rows, WANTED).values()
        return found.state, found.reason

    assert state("FAILED", "CANCELLED") == (JobState.CANCELLED, "component 2 was cancelled")
    assert state("FAILED", "FAILED") == (JobState.FAILED, "NonZeroExitCode")
    assert state("FAILED", "COMPLETING")[0] is JobState.RUNNING, "Slurm will say how it ended"
    assert state("RUNNING", "CANCELLED")[0] is JobState.RUNNING


def test_sacct_rows_are_ours_only_with_our_name() -> None:
    found = parse_sacct(
        "7|FAILED|3:0|2026-11-27T20:15:00|30|toy\n8|FAILED|1:0|Unknown|UNLIMITED|toy\n", WANTED
    )
    local = time.mktime((2026, 11, 27, 20, 15, 0, 0, 0, -1))
    assert (found["7"].exit_code, found["7"].start, found["7"].limit_s) == (3, local, 1800)
    assert list(found) == ["7"]
    assert parse_sacct("7|COMPLETED|0:0|Unknown|30|other\n", WANTED) == {}
    assert (
        parse_sacct("7|OUT_OF_MEMORY|0:125|Unknown|30|toy\n", WANTED)["7"].reason == "out of memory"
    )
    assert parse_sacct("7|CANCELLED by 0|0:15|Unknown||toy\n", WANTED)["7"].exit_code == 143


def test_one_question_for_many_jobs_and_sacct_only_for_the_rest(fake: Fake, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    fake("squeue", f'echo "squeue $*" >>{asked}; echo "7|RUNNING|None|N/A|30:00|{SCRIPT}"')
    fake("sacct", f'echo "sacct $*" >>{asked}; echo "8|COMPLETED|0:0|Unknown|30|toy"')
    wanted = {**WANTED, "8": WANTED["7"]}
    found = states.query(wanted)
    assert {job: state.state.value for job, state in found.items()} == {
        "7": "running",
        "8": "succeeded",
    }
    lines = asked.read_text().splitlines()
    assert len(lines) == 2
    assert "-j 7,8 " in lines[0]
    assert "-j 8 " in lines[1]


@pytest.mark.parametrize("hours", [-11, 0, 13])
def test_accounting_is_asked_from_before_the_submission_wherever_that_was(
    monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """sacct takes a day for one of its own time zone (-S in sacct(1))."""
    monkeypatch.setenv("TZ", f"ZONE{-hours}")
    time.tzset()
    for moment in range(1_700_000_000, 1_700_100_000, 3600):
        began = time.mktime(time.strptime(states.since(moment), "%Y-%m-%d"))
        assert moment - 3 * 86400 < began <= moment
    monkeypatch.undo()
    time.tzset()


def test_disabled_accounting_is_silent(fake: Fake, capfd: pytest.CaptureFixture[str]) -> None:
    fake("squeue", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    fake("sacct", 'echo "Slurm accounting storage is disabled" >&2; exit 1')
    assert states.query(WANTED) == {}
    assert capfd.readouterr() == ("", "")


def test_no_answer_is_not_a_job_that_has_gone(fake: Fake) -> None:
    fake("squeue", 'echo "Unable to contact slurm controller (connect failure)" >&2; exit 1')
    with pytest.raises(RemoteError, match="Unable to contact"):
        states.query(WANTED)


SBATCH = """
    env >"$CLUSTERKIT_RUN_FOLDER/seen-env"
    printf '%s\\n' "$@" >"$CLUSTERKIT_RUN_FOLDER/seen-args"
    echo 'sbatch: a word of warning' >&2
    echo 'Welcome to the cluster'
    echo '4711;west'
"""


def test_submission_hands_over_our_text_in_a_clean_environment(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("sbatch", SBATCH)
    for name in ("SLURM_CPU_BIND", "SBATCH_PARTITION", "PMI_RANK", "SRUN_CPUS_PER_TASK"):
        monkeypatch.setenv(name, "leak")
    monkeypatch.setenv("SLURM_CONF", "/etc/here")
    monkeypatch.setenv("TOKEN", "hush-hush")
    plan = slurm_plan(tmp_path, workdir="/", secrets=("TOKEN",))
    run, submission, messages = submit(plan, TOKEN=Secret("hush-hush"))
    assert submission.job_id == "4711"
    assert messages == ("sbatch: a word of warning",)
    seen = (run.path / "seen-env").read_text()
    assert "leak" not in seen
    assert "hush" not in seen
    assert "SLURM_CONF=/etc/here" in seen
    assert f"CLUSTERKIT_WORKER_PYTHON={sys.executable}" in seen
    arguments = (run.path / "seen-args").read_text().splitlines()
    assert arguments[-1] == str(run.path / "job.sbatch")
    assert "--parsable" in arguments
    assert f"--output={run.submitit}/%j_batch.out".replace("100%", "100%%") in arguments
    assert (run.path / "job.sbatch").read_text() == "#!/bin/bash\n# ours\n"
    assert (run.submitit / "4711_submitted.pkl").exists()
    assert json.loads(run.submission.read_text())["job_id"] == "4711"


@pytest.mark.parametrize(
    ("directives", "expected"),
    [
        ({}, None),
        ({"export": "ALL"}, None),
        ({"export": "NONE"}, "--export=CLUSTERKIT_RUN_FOLDER,CLUSTERKIT_WORKER_PYTHON"),
        (
            {"export": "HOME,A=b"},
            "--export=HOME,A=b,CLUSTERKIT_RUN_FOLDER,CLUSTERKIT_WORKER_PYTHON",
        ),
    ],
)
def test_our_two_variables_get_through_whatever_is_exported(
    fake: Fake, tmp_path: Path, directives: Mapping[str, str], expected: str | None
) -> None:
    fake("sbatch", SBATCH)
    run, _, _ = submit(slurm_plan(tmp_path, directives=directives))
    arguments = (run.path / "seen-args").read_text().splitlines()
    assert [a for a in arguments if a.startswith("--export")] == ([expected] if expected else [])


def test_flags_that_the_cluster_skips_are_left_out(fake: Fake, tmp_path: Path) -> None:
    fake("sbatch", SBATCH)
    skipped = ("open-mode", "output", "error")
    cluster = make_cluster(tmp_path, kind=ClusterKind.SLURM, skip_directives=skipped)
    run, _, _ = submit(make_plan(cluster))
    flags = [a.partition("=")[0] for a in (run.path / "seen-args").read_text().splitlines()]
    assert flags == ["--parsable", "--chdir", "--comment", str(run.path / "job.sbatch")]


def test_commands_answer_in_english_and_sbatch_keeps_the_users_language(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    fake("squeue", f"echo $LC_ALL >{tmp_path}/lang; echo '7|RUNNING|None|N/A|30:00|{SCRIPT}'")
    states.query(WANTED)
    assert (tmp_path / "lang").read_text() == "C\n"
    fake("sbatch", SBATCH)
    run, _, _ = submit(slurm_plan(tmp_path))
    assert "LC_ALL=de_DE.UTF-8" in (run.path / "seen-env").read_text()


def test_a_job_cancelled_on_its_way_is_ended_when_its_id_is_known(
    fake: Fake, tmp_path: Path
) -> None:
    fake("sbatch", ': >"$CLUSTERKIT_RUN_FOLDER/cancelled"\n' + textwrap.dedent(SBATCH))
    fake("scancel", f'echo "$@" >{tmp_path}/ended')
    submit(slurm_plan(tmp_path))
    assert (tmp_path / "ended").read_text() == "4711\n"


def test_cancel_waits_for_an_id_that_is_on_its_way(fake: Fake, tmp_path: Path) -> None:
    fake("sbatch", SBATCH)
    run, submission, _ = submit(slurm_plan(tmp_path))
    unknown = dataclasses.replace(submission, job_id=None)
    runfolder.write_submission(run, unknown)
    fake("scancel", f'echo "$@" >{tmp_path}/ended')
    fake(
        "squeue",
        f'[[ -e {tmp_path}/asked ]] && echo "99|{run.path}/job.sbatch|x"; : >{tmp_path}/asked',
    )
    executor_for(ClusterKind.SLURM).cancel(run, unknown)
    assert (tmp_path / "ended").read_text() == "99\n"


def test_a_run_reached_through_a_link_is_the_same(fake: Fake, tmp_path: Path) -> None:
    fake("sbatch", SBATCH)
    run, _, _ = submit(slurm_plan(tmp_path))
    fake(
        "squeue",
        f"""
        case "$*" in
            *-j*) echo "4711|RUNNING|None|N/A|30:00|{run.path}/job.sbatch" ;;
            *) echo "4711|{run.path}/job.sbatch|(null)" ;;
        esac
        """,
    )
    (tmp_path / "roots").symlink_to(run.path.parent)
    by_root = RunFolder(tmp_path / "roots" / run.run_id)
    assert load_job(by_root).status.state is JobState.RUNNING
    submission = runfolder.read_submission(run)
    assert submission is not None
    assert lost_jobs.find({by_root: submission}) == {by_root: "4711"}
    (tmp_path / "mine").symlink_to(run.path)
    by_name = find_run(str(tmp_path / "mine"), [])
    assert by_name.run_id == run.run_id
    assert load_job(by_name).status.state is JobState.RUNNING


FULL = r"""
    import json, subprocess, sys
    from pathlib import Path
    from clusterkit.executors.run import runfolder
    from clusterkit.core.errors import UserError
    from clusterkit.executors import submit_plan
    from clusterkit.core.model import ClusterKind, RenderedFile
    from tests.helpers.plans import make_cluster, make_plan

    mount, options = Path(sys.argv[1]), sys.argv[2:]
    called = mount.parent / "called"
    for option in options:
        called.unlink(missing_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", option, "tmpfs", mount], check=True)
        said, job_id = [], None
        try:
            plan = make_plan(make_cluster(mount / "runs", kind=ClusterKind.SLURM))
            run = runfolder.create(plan.cluster, plan.name)
            script = RenderedFile(name="job.sbatch", text="#!/bin/bash\n" + "#" * 5000)
            submission, launched = submit_plan(plan, [script], run, secrets={})
            job_id, said = submission.job_id, list(launched.messages)
        except UserError as error:
            said = [str(error)]
        left = len(list(mount.glob("runs/*")))
        subprocess.run(["umount", mount], check=True)
        print(json.dumps([called.exists(), job_id, left, said]))
"""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([f"size=1m,nr_inodes={n}" for n in range(2, 18)], id="inodes"),
        pytest.param([f"nr_inodes=100,size={4 * n}k" for n in range(1, 16)], id="blocks"),
    ],
)
def test_a_disk_that_fills_up_at_any_moment(tmp_path: Path, options: list[str]) -> None:
    """Nothing is left where nothing was started, and no id is lost where something was."""
    mount, tools = tmp_path / "disk", tmp_path / "bin"
    mount.mkdir()
    tools.mkdir()
    sbatch = tools / "sbatch"
    sbatch.write_text(f"#!/bin/bash\n: >{tmp_path}/called\necho 4711\n")
    sbatch.chmod(0o755)
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        lack("no mount namespace to fill a disk in", "run the tests as root")
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", textwrap.dedent(FULL), str(mount), *options],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    seen = set()
    for called, job_id, left, said in map(json.loads, done.stdout.splitlines()):
        if not called:
            assert (job_id, left) == (None, 0), said
            assert "No space left on device" in said[0]
            assert "the disk is full" in said[0]
        else:
            assert (job_id, left) == ("4711", 1), said
            assert not said or said[0].startswith("job 4711 was accepted, but cannot write ")
        seen.add((called, bool(said)))
    assert seen - {(True, True)} == {(False, True), (True, False)}


REFUSALS = [
    ("Batch job submission failed: Invalid partition name specified", "set `partition`"),
    (
        ("Batch job submission failed: Invalid account or account/partition combination specified"),
        "`account`",
    ),
    ("Batch job submission failed: Invalid qos specification", "set `qos`"),
    ("Batch job submission failed: Invalid generic resource (gres) specification", "`gpu_request`"),
    (
        (
            "Batch job submission failed: Requested time limit is invalid "
            "(missing or exceeds some limit)"
        ),
        "--time",
    ),
    ("Batch job submission failed: Memory required by task is not available", "set `memory`"),
    ("Batch job submission failed: Node count specification invalid", "fewer nodes"),
    ("Batch job submission failed: Requested node configuration is not available", "fewer nodes"),
    ("Batch job submission failed: Invalid feature specification", "`constraint`"),
    ("sbatch: unrecognized option '--gpus-per-node=1'", "`gpu_request`"),
    ("sbatch: unrecognized option '--oversubscribe'", "`skip_directives`"),
    ("Plugin says: come back on Monday", "job.sbatch"),
]


@pytest.mark.parametrize(("words", "hint"), REFUSALS)
def test_sbatchs_own_words_and_our_hint(fake: Fake, tmp_path: Path, words: str, hint: str) -> None:
    fake("sbatch", f'echo "sbatch: error: {words.replace(chr(39), "")}" >&2; exit 1')
    with pytest.raises(RemoteError) as caught:
        submit(slurm_plan(tmp_path))
    assert words.replace("'", "").removeprefix("sbatch: ") in caught.value.message
    assert hint in (caught.value.hint or "")
    (folder,) = (tmp_path / "runs 100%").iterdir()
    status = load_job(RunFolder(folder)).status
    assert status.state is JobState.FAILED
    assert not (folder / "secrets.env").exists()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("unrecognized option --foo=qos", "remove --set sbatch.foo"),
        ("unrecognized option '--acount=x'", "did you mean 'account'?"),
        ("Invalid --mail-type specification", "remove --set sbatch.mail-type"),
        ("unrecognized option --exclusve", "remove exclusve from `extra_directives` of cluster c"),
        ("unrecognized option --no-requeue", "`skip_directives` of cluster c"),
    ],
)
def test_a_refused_option_goes_back_to_who_asked_for_it(
    fake: Fake, tmp_path: Path, words: str, hint: str
) -> None:
    more = "echo 'Try \"sbatch --help\" for more information' >&2"
    fake("sbatch", f'echo "sbatch: error: {words}" >&2; {more}; exit 255')
    directives = {"foo": "qos", "mail-type": "NOPE", "exclusve": None, "no-requeue": None}
    directives["acount"] = "x"
    plan = slurm_plan(tmp_path, directives=directives)
    site = dataclasses.replace(plan.cluster, extra_directives={"exclusve": ""})
    with pytest.raises(RemoteError) as caught:
        submit(dataclasses.replace(plan, cluster=site))
    assert hint in (caught.value.hint or "")
    assert caught.value.message == f"sbatch refused the job: {words}"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            "invalid partition specified: debgu",
            "--set sbatch.partition=debgu: did you mean 'debug'?",
        ),
        ("Invalid qos specification", "--set sbatch.qos=hgih: yours: sacctmgr show assoc"),
        ("Invalid account", "set `account` of cluster c; yours: "),
    ],
)
def test_a_refused_value_of_a_flag_is_not_sought_in_the_configuration(
    fake: Fake, tmp_path: Path, words: str, hint: str
) -> None:
    fake("sbatch", f'echo "sbatch: error: {words}" >&2; exit 1')
    fake("sinfo", "echo gpu; echo debug")
    plan = slurm_plan(tmp_path, directives={"partition": "debgu", "qos": "hgih", "account": "us"})
    site = dataclasses.replace(plan.cluster, partition="gpu", account="us")
    with pytest.raises(RemoteError) as caught:
        submit(dataclasses.replace(plan, cluster=site))
    assert (caught.value.hint or "").startswith(hint)


def test_a_partition_of_the_configuration_that_is_none_is_told_with_one_that_is_near(
    fake: Fake, tmp_path: Path
) -> None:
    fake("sbatch", "echo 'sbatch: error: invalid partition specified: gpuu' >&2; exit 1")
    fake("sinfo", "echo gpu; echo debug")
    plan = slurm_plan(tmp_path, directives={"partition": "gpuu"})
    site = dataclasses.replace(plan.cluster, partition="gpuu")
    with pytest.raises(RemoteError) as caught:
        submit(dataclasses.replace(plan, cluster=site))
    assert caught.value.hint == "`partition: gpuu` of cluster c: did you mean 'gpu'?"


def test_gpus_that_the_configuration_asks_for_are_told_as_such() -> None:
    partition = slurm_limits.parse_partition(PARTITION, SINFO)
    assert partition is not None
    plan = make_plan(
        make_cluster(Path("/x"), kind=ClusterKind.SLURM),
        nodes=1,
        directives={"gpus-per-node": "9"},
    )
    site = dataclasses.replace(plan.cluster, gpus_per_node=9)
    (found,) = slurm_limits.problems_of(dataclasses.replace(plan, cluster=site), partition)
    assert "9 GPUs per node asked for on 1 node, but" in found.message
    assert found.hint == "--gpus-per-node 8, or `gpus_per_node: 8` of cluster local"


def test_no_sbatch_here(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="sbatch: command not found") as caught:
        submit(slurm_plan(tmp_path))
    assert "--cluster local" in (caught.value.hint or "")


def test_a_job_whose_client_died_is_found_by_its_script(fake: Fake, tmp_path: Path) -> None:
    fake("sbatch", SBATCH)
    run, _, _ = submit(slurm_plan(tmp_path))
    document = json.loads(run.submission.read_text())
    run.submission.write_text(json.dumps({**document, "job_id": None}))
    fake(
        "squeue",
        f"""
        case "$*" in
            *-j*) echo "99|PENDING|Priority|N/A|30:00|{run.path}/job.sbatch" ;;
            *) echo "99|{run.path}/job.sbatch|(null)" ;;
        esac
        """,
    )
    job = load_job(run)
    assert (job.submission.job_id, job.status.state) == ("99", JobState.PENDING)
    assert json.loads(run.submission.read_text())["job_id"] == "99"


def test_many_jobs_cost_one_question(fake: Fake, tmp_path: Path) -> None:
    fake("sbatch", SBATCH)
    runs = [submit(slurm_plan(tmp_path))[0] for _ in range(5)]
    asked = tmp_path / "asked"
    fake("squeue", f"echo x >>{asked}")
    assert {job.status.state for job in load_jobs(runs)} == {JobState.UNKNOWN}
    assert len(asked.read_text().splitlines()) == 1


def test_what_srun_said_in_the_batch_script_is_shown(fake: Fake, tmp_path: Path) -> None:
    fake("sbatch", "echo 4711")
    run, _, _ = submit(slurm_plan(tmp_path))
    said = "srun: unrecognized option '--container-image=/x.sqsh'"
    (run.submitit / "4711_batch.out").write_text("\n" * 3 + f"{said}\nTry more\n")
    fake("squeue", f'echo "4711|FAILED|NonZeroExitCode|N/A|30:00|{run.path}/job.sbatch"')
    job = load_job(run)
    assert job.status.state is JobState.FAILED
    assert batch_output(job) == (said, "Try more")
    assert any("container-image" in line for line in last_words(job))
    assert logs_document(run, None, None)["batch"] == (said, "Try more")
    assert full_document_of(job)["failure"]["tail"] == (said, "Try more")
    cause = diagnose_job(job, load_rules()).diagnosis.cause
    assert cause is not None
    assert cause.rule == "slurm-step-refused"
    shown = CliRunner().invoke(app, ["logs", str(run.path)])
    assert said in shown.stdout


def test_a_python_that_no_node_has_is_told_by_the_shell_of_its_task(
    fake: Fake, tmp_path: Path
) -> None:
    fake("sbatch", "echo 4711")
    run, _, _ = submit(slurm_plan(tmp_path))
    said = "rank: line 1: /home/me/venv/bin/python: No such file or directory"
    task = "srun: error: n1: task 0: Exited with exit code 127"
    (run.submitit / "4711_batch.out").write_text(f"{task}\n")
    (run.submitit / "4711_0_log.out").touch()
    (run.submitit / "4711_1_log.out").write_text(f"{said}\n")
    (run.submitit / "999_0_log.out").write_text("of an earlier one\n")
    fake("squeue", f'echo "4711|FAILED|NonZeroExitCode|N/A|30:00|{run.path}/job.sbatch"')
    job = load_job(run)
    assert batch_output(job) == (said, task)
    cause = diagnose_job(job, load_rules()).diagnosis.cause
    assert cause is not None
    assert cause.rule == "command-missing"


def test_submitits_own_job_knows_its_state_without_accounting(fake: Fake, tmp_path: Path) -> None:
    from clusterkit.executors.submitit_job import RunJob  # noqa: PLC0415

    fake("sbatch", SBATCH)
    run, _, _ = submit(slurm_plan(tmp_path))
    fake("squeue", f'echo "4711|RUNNING|None|N/A|30:00|{run.path}/job.sbatch"')
    job = RunJob(folder=run.submitit, job_id="4711", tasks=[0, 1])
    assert job.state == "RUNNING"
    assert job.num_tasks == 2


def limits(**changes: object) -> list[str]:
    partition = slurm_limits.parse_partition(PARTITION, SINFO)
    assert partition is not None
    plan = make_plan(make_cluster(Path("/x"), kind=ClusterKind.SLURM), **changes)
    return [problem.message for problem in slurm_limits.problems_of(plan, partition)]


def test_nodes_that_sinfo_hides_count() -> None:
    """Powered-down cloud nodes; nobody knows how many GPUs they have."""
    text = PARTITION.replace("TotalNodes=3", "TotalNodes=19").replace("n[1-3]", "n[1-19]")
    partition = slurm_limits.parse_partition(text, SINFO)
    assert partition is not None
    plan = make_plan(make_cluster(Path("/x"), kind=ClusterKind.SLURM))

    def told(**changes: object) -> list[str]:
        asked = dataclasses.replace(plan, **changes)
        return [problem.message for problem in slurm_limits.problems_of(asked, partition)]

    big = {"gpus-per-node": "8"}
    assert told(nodes=4, directives=big) == []
    assert told(nodes=20) == ["20 nodes asked for, but partition gpu has 19"]


def test_limits_name_the_figures() -> None:
    assert limits(nodes=3) == []
    assert limits(nodes=5) == ["5 nodes asked for, but partition gpu has 3"]
    assert limits(nodes=2, spares=1) == []
    assert limits(nodes=2, spares=9) == ["2 nodes and 9 spares asked for, but partition gpu has 3"]
    assert limits(nodes=3, directives={"exclude": "n[2-3]"}) == [
        "3 nodes asked for, but partition gpu has 1 without n[2-3]"
    ]
    assert limits(nodes=2, directives={"gpus-per-node": "4"}) == []
    assert limits(nodes=2, directives={"gpus-per-node": "a100:8"}) == [
        (
            "8 GPUs per node asked for on 2 nodes, but only 1 of the 3 nodes of partition gpu have "
            "that many"
        )
    ]
    assert limits(nodes=1, directives={"gres": "gpu:a100:9,shard:2"})[0].startswith(
        "9 GPUs per node"
    )
    assert limits(nodes=1, time_limit_s=93_600) == []
    assert limits(nodes=1, time_limit_s=200_000) == [
        "2-07:33:20 asked for, but partition gpu allows 1-02:00:00"
    ]
    assert limits(nodes=1, directives={"time": "UNLIMITED"}) == [
        "no time limit asked for, but partition gpu allows 1-02:00:00"
    ]


def test_spares_count_among_the_most_nodes_of_a_job() -> None:
    partition = slurm_limits.parse_partition(PARTITION.replace("MaxNodes=4", "MaxNodes=2"), SINFO)
    assert partition is not None
    plan = make_plan(make_cluster(Path("/x"), kind=ClusterKind.SLURM), nodes=2)
    assert slurm_limits.problems_of(plan, partition) == []
    spared = dataclasses.replace(plan, spares=1)
    (problem,) = slurm_limits.problems_of(spared, partition)
    asked = "2 nodes and 1 spare asked for, but partition gpu gives a job at most 2"
    assert (problem.message, problem.hint) == (asked, "--spares 0")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "waits for nodes or GPUs to become free (Resources)"),
        ("JobHeldUser", "held until `scontrol release 7` (JobHeldUser)"),
        (
            "ReqNodeNotAvail, UnavailableNodes:n1",
            (
                "a node that it needs is in use, reserved, down or drained (ReqNodeNotAvail), "
                "UnavailableNodes:n1"
            ),
        ),
        (
            "attempt 2 of 3 is queued: Priority",
            "attempt 2 of 3 is queued: jobs with a higher priority go first (Priority)",
        ),
        (
            "attempt 2 of 3 is queued: launch failed requeued held",
            (
                "attempt 2 of 3 is queued: held, as Slurm could not start it on its nodes; "
                "`scontrol release 7` tries again (launch failed requeued held)"
            ),
        ),
        (
            "QOSMaxGRESPerNode",
            "never starts: it asks for more of a node than its QOS allows (QOSMaxGRESPerNode)",
        ),
        (
            "MaxGRESPerAccount",
            (
                "the jobs of its account together use all that its QOS allows an account "
                "(MaxGRESPerAccount)"
            ),
        ),
        (
            "AssocGrpGRESMinutes",
            (
                "the minutes (of CPUs, GPUs, ...) that its account has are used up "
                "(AssocGrpGRESMinutes)"
            ),
        ),
        (
            "QOSMaxGRESPerUser",
            "your jobs use all that its QOS allows a user (QOSMaxGRESPerUser)",
        ),
        (
            "QOSMaxWallDurationPerJobLimit",
            (
                "never starts: its time limit is longer than its QOS allows "
                "(QOSMaxWallDurationPerJobLimit)"
            ),
        ),
        (
            "AssocGrpGRES",
            "the jobs of its account together use all that the account may (AssocGrpGRES)",
        ),
        (
            "PartitionTimeLimit",
            "never starts: its time limit is longer than the partition allows (PartitionTimeLimit)",
        ),
        (
            "AccountNotAllowed",
            "never starts: its account or group may not use the partition (AccountNotAllowed)",
        ),
        ("NodeDown", "a node that it needs is down (NodeDown)"),
        ("Nodes required for job are DOWN: n1 is down", None),
        ("SomethingNew", None),
        ("2 of 3 nodes up, n3 boot since 10:00", None),
    ],
)
def test_why_a_job_waits_is_told_in_plain_words(reason: str, words: str | None) -> None:
    assert pending.in_words(reason, "7") == (words or reason)


def test_what_there_is_not_is_refused_before_the_nodes_are_asked(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `--dry-run` says it; srun would fail on each node, and be blamed by SSH001."""
    fake("scontrol", f"printf '%s' '{PARTITION}'")
    fake("sinfo", f"printf '%s' '{SINFO}'")
    monkeypatch.setattr(gate, "examine", lambda *_, **__: pytest.fail("the nodes were asked"))
    plan = slurm_plan(tmp_path, nodes=2, directives={"gpus-per-node": "9"})
    request = JobRequest(verb="submit", flags={}, file=None, warn=print)
    callbacks = SubmitCallbacks(warn=print, note=print, on_reply=print)
    for mode in ("auto", "full"):
        prepared = Prepared(request=request, plans=(plan,), mode=mode, after=())
        with pytest.raises(UserError, match=r"9 GPUs per node .* nodes of .* have at most 8"):
            check(prepared, callbacks)


def test_nodes_that_slurm_does_not_know_are_named(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = 'echo "ResumeProgram = ${RESUME:-(null)}"'
    fake("scontrol", f"case \"$*\" in *config) {program} ;; *) printf '%s' '{PARTITION}' ;; esac")
    fake("sinfo", f"printf '%s' '{SINFO}'")
    for excluded in ("n9", "n[1,9]"):
        with pytest.raises(UserError, match=r"--exclude: Slurm has no node n9\n"):
            slurm_limits.check(slurm_plan(tmp_path, directives={"exclude": excluded}))
    known = forecast(slurm_plan(tmp_path, directives={"exclude": "n9"}), "")
    assert known.problems[-1].message == "--exclude: Slurm has no node n9"
    slurm_limits.check(slurm_plan(tmp_path, directives={"exclude": "n1"}))
    # One of a cloud that is powered down may be hidden from sinfo.
    monkeypatch.setenv("RESUME", "/sbin/resume")
    fake("sinfo", f"printf '%s' '{SINFO.replace('n2', 'n1')}'")
    slurm_limits.check(slurm_plan(tmp_path, directives={"exclude": "n2"}))


def test_limits_that_cannot_be_asked_are_not_checked(fake: Fake, tmp_path: Path) -> None:
    slurm_limits.check(slurm_plan(tmp_path, nodes=500))
    fake("scontrol", f"printf '%s' '{PARTITION}'")
    fake("sinfo", f"printf '%s' '{SINFO}'")
    with pytest.raises(UserError, match="500 nodes asked for, but partition gpu has 3"):
        slurm_limits.check(slurm_plan(tmp_path, nodes=500))
    assert slurm_limits.check(slurm_plan(tmp_path))  # n3 is powered down
    fake("sinfo", f"printf '%s' '{SINFO.replace('~', '')}'")
    assert not slurm_limits.check(slurm_plan(tmp_path))


def test_a_hint_for_a_flag_does_not_hang_on_the_name_of_the_cluster(
    fake: Fake, tmp_path: Path
) -> None:
    fake("sbatch", 'echo "sbatch: error: Invalid qos specification" >&2; exit 1')
    plan = slurm_plan(tmp_path, directives={"qos": "hgih"})
    plan = dataclasses.replace(plan, cluster=dataclasses.replace(plan.cluster, name="my lab"))
    with pytest.raises(RemoteError) as caught:
        submit(plan)
    assert (caught.value.hint or "").startswith("--set sbatch.qos=hgih: yours: ")
