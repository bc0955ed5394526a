"""`submit --array` and `--after` as a user types them, mistakes included."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers.command_line import typed_in

CONFIG = """\
default_cluster: here
clusters:
  here: {{kind: local, run_dir: runs, preflight: "off", python: {python}}}
  a100: {{kind: slurm, partition: gpu, gpus_per_node: 8, run_dir: runs}}
"""
TRAIN = "import sys\nprint(*sys.argv[1:])\nsys.exit(int(sys.argv[1]))\n"
TORCHRUN = ("--framework", "torchrun")
DRY = ("submit", *TORCHRUN, "--cluster", "a100", "--dry-run")

FAKE_SBATCH = """\
#!/bin/sh
n=$(($(cat {folder}/count 2>/dev/null || echo 100) + 1))
echo $n >{folder}/count
[ $n -le {last} ] || {{ {then}; }}
echo $n
"""
"""A Slurm that accepts jobs up to a limit; the rest of it does not answer."""


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "clusterkit.yaml").write_text(CONFIG.format(python=sys.executable))
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def run(desk: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return typed_in(desk, *words, **env)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--array", "lr=1,,2", "train.py", "{lr}"), ["--> --array:1:6", "1 | lr=1,,2"]),
        (("--array", "0-3", "train.py"), ["no such file, and no values", "--array 'lr=1e-3"]),
        (("--array", "lr=1,2", "train.py"), ["does not use", "train.py --lr {lr}"]),
        (("--array", "lr=1", "train.py", "{lrr}"), ["'{lrr}' is not a", "did you mean 'lr'?"]),
        (("--array", "lr=1-2000", "train.py", "{lr}"), ["2000 jobs", "at most 1000"]),
        (("--at-once", "2", "train.py"), ["--at-once is of an array", "--array 'lr="]),
        (("--elements", "2", "train.py"), ["--elements is of an array"]),
        (("--array", "lr=1", "--at-once", "0", "train.py", "{lr}"), ["at least 1 job"]),
        (
            ("--array", "lr=1,2%1", "--at-once", "2", "train.py", "{lr}"),
            ["--at-once 2, and %1 in the array: two limits"],
        ),
        (("--array", "lr=1", "--elements", "3", "train.py", "{lr}"), ["count from 0 to 0"]),
        (("--array", "lr=1", "--follow", "train.py", "{lr}"), ["--follow prints", "--wait"]),
        (("--array", "lr=1", "--env", "A B={lr}", "train.py"), ["'A B' is not a name"]),
        (("--after", "array-0a1b2c", "train.py"), ["no array 'array-0a1b2c'"]),
        (("--after", "17", "train.py"), ["no job '17'"]),
        (("--after", "17:done", "train.py"), ["--after 17:ok, 17:fail or 17:any"]),
        (("--dependency", "afterok:17", "train.py"), ["hint: --after JOB:ok"]),
        (("--set", "sbatch.array=0-3", "-c", "a100", "train.py"), ["--array 'lr="]),
    ],
)
def test_mistakes_say_what_to_type(desk: Path, words: tuple[str, ...], said: list[str]) -> None:
    done = typed_in(desk, "submit", *TORCHRUN, *words, HOME=str(desk))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.replace(str(desk), "").splitlines()
    assert max(map(len, lines)) <= 100
    for text in said:
        assert text in done.stderr
    assert not list(desk.glob("runs/*"))


def test_a_dry_run_shows_a_table_of_the_jobs_and_one_script(desk: Path) -> None:
    done = typed_in(desk, *DRY, "--array", "lr=1e-3,1e-4;seed=0-9%4", "train.py", "{lr}", "{seed}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("#!/bin/bash") == 1
    assert "20 jobs, 4 at once; the script is that of the first\n" in done.stderr
    lines = [line.split() for line in done.stderr.splitlines()]
    assert ["JOB", "NAME", "lr", "seed"] in lines
    assert ["0", "train-0", "1e-3", "0"] in lines
    assert ["...", "8", "more"] in lines
    assert ["19", "train-19", "1e-4", "9"] in lines


def test_a_dry_run_as_json_lists_all_values(desk: Path) -> None:
    one = (*DRY, "--array", "lr=1,2", "--elements", "1", "train.py", "{lr}")
    done = typed_in(desk, *one[:-2], "--json", *one[-2:])
    assert "\n1 job\n" in typed_in(desk, *one).stderr
    document = json.loads(done.stdout)
    assert document["elements"] == [{"index": 1, "name": "train", "values": {"lr": "2"}}]
    assert document["plan"]["args"] == ["2"]


def test_a_job_file_may_have_an_array_of_values_in_another_file(desk: Path) -> None:
    (desk / "values.csv").write_text("lr,seed\n1,7\n2,8\n")
    (desk / "job.yaml").write_text(
        "framework: torchrun\nscript: train.py\nargs: '{lr}'\nenv: {SEED: 's{seed}'}\n"
        "array: values.csv\nat-once: 1\ncluster: a100\n"
    )
    done = typed_in(desk, "submit", "--dry-run", "--json", "--job", "job.yaml")
    document = json.loads(done.stdout)
    assert [one["values"]["seed"] for one in document["elements"]] == ["7", "8"]
    assert document["at_once"] == 1
    assert document["plan"]["env"] == {"SEED": "s7"}


def test_render_writes_each_job_into_a_folder_of_its_own(desk: Path) -> None:
    array = ("--cluster", "a100", "--array", "lr=1,2", "train.py", "--lr={lr}")
    done = typed_in(desk, "render", *TORCHRUN, "--only", "sbatch", *array)
    assert done.stdout.split() == ["rendered/0/job.sbatch", "rendered/1/job.sbatch"]
    assert "--lr=2" in (desk / "rendered/1/job.sbatch").read_text()
    assert typed_in(desk, "render", *TORCHRUN, "--stdout", *array).returncode == 2


def test_an_array_runs_on_this_machine_and_all_verbs_know_it(desk: Path) -> None:
    array = ("--array", "code=0,3", "--at-once", "1", "--name", "c{code}", "train.py", "{code}")
    done = run(desk, "submit", "--json", *TORCHRUN, *array)
    document = json.loads(done.stdout)
    name, jobs = document["array"], document["jobs"]
    assert document["schema"] == 1
    assert [(job["array"], job["index"], job["name"]) for job in jobs] == [
        (name, 0, "c0"), (name, 1, "c3"),
    ]  # fmt: skip
    assert jobs[1]["state"] == "pending"
    assert jobs[1]["reason"] == f"after {jobs[0]['job_id']} has ended"
    after = run(desk, "submit", *TORCHRUN, "--after", name, "train.py", "0")
    assert f"starts      after {jobs[0]['job_id']}, {jobs[1]['job_id']} have succ" in after.stderr
    assert max(len(line) for line in after.stderr.splitlines() if "/" not in line) <= 80
    waited = run(desk, "wait", name, "--json")
    assert waited.returncode == 1
    assert json.loads(waited.stdout)["counts"] == {"succeeded": 1, "failed": 1}
    assert f"job    {name}/1  (1 of 2)\nwhat   the script ended with exit code 3" in waited.stderr
    shown = run(desk, "status", name)
    assert shown.returncode == 1
    assert shown.stdout.startswith(f"{name}  1 succeeded, 1 failed\n")
    assert f"{jobs[0]['job_id']}  c0  code=0  0  succeeded\n" in shown.stdout
    listed = json.loads(run(desk, "status", name, "--json").stdout)["jobs"]
    assert [job["values"] for job in listed] == [{"code": "0"}, {"code": "3"}]
    assert run(desk, "logs", f"{name}/1").stdout.strip().startswith("3")
    assert "say which one" in run(desk, "logs", "-f", name).stderr
    assert "2 succeeded" not in run(desk, "cancel", name).stdout
    assert f"c3 ({name})  code=3\n" in run(desk, "status").stdout
    # Not all of the array succeeded, so the job after it never runs.
    last = json.loads(run(desk, "status", after.stdout.strip(), "--json").stdout)
    assert last["state"] == "cancelled"
    assert last["reason"] == f"{jobs[1]['job_id']} failed, and it was to run after its success"


SWEPT = """\
import sys
lr, seed = sys.argv[1], int(sys.argv[2])
print(f"step {seed}/100 loss {lr}.0")
if lr == "2":
    raise ValueError(f"no learning rate {lr} in trial-{seed}")
if seed == 7:
    {}["warmup"]
"""


def test_failed_jobs_of_a_sweep_are_folded_by_cause_and_latest_is_all_of_it(desk: Path) -> None:
    (desk / "train.py").write_text(SWEPT)
    sweep = ("--array", "lr=1,2;seed=5-7", "train.py", "{lr}", "{seed}")
    run(desk, "submit", "--framework", "env", *sweep)
    waited = run(desk, "wait", "latest", "--json")
    document = json.loads(waited.stdout)
    array = document["array"]
    assert document["counts"] == {"succeeded": 2, "failed": 4}
    shown = run(desk, "status", array).stdout.splitlines()
    assert shown[1].endswith("  lr=1 seed=5  step 5/100 loss 1.0  succeeded")
    listed = json.loads(run(desk, "status", array, "--json").stdout)["jobs"]
    assert [job["last_step_line"] for job in listed] == [
        f"step {seed}/100 loss {lr}.0" for lr in "12" for seed in (5, 6, 7)
    ]
    found = run(desk, "diagnose", "latest")
    assert found.returncode == 1
    assert found.stdout in waited.stderr
    first, second = found.stdout.rstrip().split("\n\n")
    for text in (
        f"jobs   {array}/3-5  (3 of 6)\nwhat   the script raised ValueError.",
        "between 5 and 7",
    ):
        assert text in first
    assert first.endswith(f"one    $ clusterkit diagnose {array}/3")
    assert second.startswith(f"job    {array}/2  (1 of 6)\nwhat   the script raised KeyError.")
    assert max(map(len, found.stdout.replace(str(desk), "").splitlines())) <= 80
    causes = json.loads(run(desk, "diagnose", array, "--json").stdout)["causes"]
    told = [(one["indices"], one["steps"], one["cause"]["rule"]) for one in causes]
    assert told == [([3, 4, 5], [5, 6, 7], "python-exception"), ([2], [7], "python-exception")]
    logs = run(desk, "logs", "latest", "--tail", "1")
    assert "ValueError: no learning rate 2 in trial-5" in logs.stdout
    assert logs.stdout.endswith(f"one    $ clusterkit logs {array}/2\n\n")
    assert "KeyError: 'warmup'" in run(desk, "logs", array).stdout
    assert "what   the script raised KeyError" in run(desk, "diagnose", f"{array}/2").stdout
    both = run(desk, "wait", f"{array}/3", f"{array}/2").stderr
    named = re.findall(r"^job    local-\S+ \((train-\d)\)\n  \| step", both, re.MULTILINE)
    assert named == ["train-3", "train-2"]
    one = json.loads(run(desk, "logs", array, "--tail", "1", "--json").stdout)["causes"][1]["logs"]
    assert [node["text"] for node in one["nodes"]] == ["KeyError: 'warmup'\n"]
    ended = run(desk, "cancel", "latest")
    assert ended.stdout == f"{array} 2 succeeded, 4 failed\n"


def fake_slurm(desk: Path, then: str) -> str:
    """Return a PATH with a Slurm that accepts two jobs, and then does something else."""
    tools = desk / "bin"
    tools.mkdir()
    sbatch = tools / "sbatch"
    sbatch.write_text(FAKE_SBATCH.format(folder=desk, last=102, then=then))
    sbatch.chmod(0o755)
    return f"{tools}:{os.environ['PATH']}"


SLEEPING = """\
#!/bin/sh
case "$*" in
*partition*) echo PartitionName=gpu MaxTime=UNLIMITED Nodes=n[1-2] TotalNodes=2 ;;
*) printf 'n1|idle|gpu:8\\nn2|idle%s|gpu:8\\n' "$POWER" ;;
esac
"""


@pytest.mark.parametrize(
    ("power", "words", "directive"),
    [
        ("~", (), "requeue"),
        ("", (), "no-requeue"),
        ("~", ("--preflight", "off"), "no-requeue"),
        ("~", ("--set", "sbatch.no_requeue="), "no-requeue"),
    ],
)
def test_only_where_nodes_may_have_to_boot_slurm_may_put_jobs_back(
    desk: Path, power: str, words: tuple[str, ...], directive: str
) -> None:
    path = fake_slurm(desk, "exit 1")
    for name in ("sinfo", "scontrol"):
        (desk / "bin" / name).write_text(SLEEPING)
        (desk / "bin" / name).chmod(0o755)
    jobs = ("--cluster", "a100", *words, "--array", "s=0,1", "train.py", "{s}")
    done = run(desk, "submit", *TORCHRUN, *jobs, PATH=path, POWER=power)
    assert done.returncode == 0, done.stderr
    scripts = [script.read_text() for script in desk.glob("runs/*/job.sbatch")]
    told = [(f"#SBATCH --{directive}\n" in text, "Requeue=0" in text) for text in scripts]
    assert told == [(True, directive == "requeue")] * 2


FIVE = ("--cluster", "a100", "--preflight", "off", "--array", "s=0-4%1", "train.py", "{s}")


def test_a_refusal_in_the_middle_says_what_was_submitted_and_how_to_submit_the_rest(
    desk: Path,
) -> None:
    words = "Batch job submission failed: Job violates accounting/QOS policy (job submit limit)"
    path = fake_slurm(desk, f"echo 'sbatch: error: {words}' >&2; exit 1")
    done = run(desk, "submit", "--json", *TORCHRUN, *FIVE, PATH=path)
    assert done.returncode == 2
    document = json.loads(done.stdout)
    assert [job["job_id"] for job in document["jobs"]] == ["101", "102"]
    assert document["not_submitted"] == [2, 3, 4]
    assert "2 of 5 jobs submitted (0-1)" in document["error"]["message"]
    assert "job 2: sbatch refused the job: Batch job submission failed" in done.stderr
    assert "the rest: the same command with --elements 2-4" in done.stderr
    assert f"clusterkit cancel {document['array']}" in done.stderr
    # Each was to follow the one before.
    asked = [
        line
        for script in desk.glob("runs/*/job.sbatch")
        for line in script.read_text().splitlines()
        if line.startswith(("#SBATCH --dependency", "#SBATCH --kill-on-invalid-dep"))
    ]
    assert sorted(asked) == [
        "#SBATCH --dependency=afterany:101",
        "#SBATCH --dependency=afterany:102",
        *["#SBATCH --kill-on-invalid-dep=yes"] * 2,
    ]


def test_an_answer_that_proves_nothing_ends_an_array_and_its_job_is_looked_for(desk: Path) -> None:
    words = "Batch job submission failed: Socket timed out on send/recv operation"
    path = fake_slurm(desk, f"echo 'sbatch: error: {words}' >&2; exit 1")
    squeue = desk / "bin" / "squeue"
    squeue.write_text("#!/bin/sh\n")
    squeue.chmod(0o755)
    done = run(desk, "submit", "--json", *TORCHRUN, *FIVE, PATH=path)
    assert done.returncode == 2
    document = json.loads(done.stdout)
    assert document["not_submitted"] == [3, 4]
    assert "nobody can tell yet whether the job was accepted" in done.stderr
    name = document["array"]
    assert f"whether job 2 was accepted tells clusterkit status {name}" in done.stderr
    (third,) = (path for path in (desk / "runs").glob("*") if _index(path) == 2)
    squeue.write_text(f"#!/bin/sh\necho '103|/x|clusterkit:{third.name}'\n")
    jobs = json.loads(run(desk, "status", name, "--json", PATH=path).stdout)["jobs"]
    assert [job["job_id"] for job in jobs] == ["101", "102", "103"]


def _index(path: Path) -> int | None:
    submission = runfolder.read_submission(RunFolder(path))
    return submission.index if submission is not None else None


def test_an_interrupted_submission_tells_what_became_of_each_job(desk: Path) -> None:
    path = fake_slurm(desk, "kill -INT $PPID; sleep 1")
    done = run(desk, "submit", *TORCHRUN, *FIVE, PATH=path)
    assert (done.returncode, done.stdout) == (130, "")
    assert "job 2: interrupted" in done.stderr
    assert "2 of 5 jobs submitted (0-1)" in done.stderr
    assert "whether job 2 was accepted tells clusterkit status array-" in done.stderr
    assert "the same command with --elements 3-4" in done.stderr
