"""`submit` and `render` as a user types them, mistakes included."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from clusterkit.cli.jobs.submit_output import show_script
from clusterkit.core.errors import UserError
from clusterkit.core.model import (
    ClusterKind,
    ClusterSpec,
    ContainerPlan,
    ContainerRuntime,
    LaunchPlan,
)
from clusterkit.jobs.submit.hand_over import require_engine, require_package
from clusterkit.launch.options import JobSpec
from clusterkit.launch.plan import make_plan
from clusterkit.launch.render import render
from tests.helpers import plans
from tests.helpers.command_line import typed_in

CONFIG = """\
default_cluster: a100
clusters:
  a100: {kind: slurm, partition: gpu, gpus_per_node: 8, run_dir: runs}
  rack: {kind: ssh, hosts: "n[1-3]", gpus_per_node: 2}
"""


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "clusterkit.yaml").write_text(CONFIG)
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "train.py").write_text("print('hello')\n")
    (tmp_path / "run.sh").write_text("echo hello\n")
    return tmp_path


def run(desk: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return typed_in(desk, *words, **{"SECRET": "hush", **env})


TORCHRUN = ("--framework", "torchrun")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("submit",), ["no training script", "clusterkit submit --nodes 2 train.py"]),
        (("render",), ["no training script", "clusterkit render --nodes 2 train.py"]),
        (("submit", "-m", "train.py"), ["-m train.py: that is a file", "-m train, or leave"]),
        (("submit", "-m", "pkg.trian"), ["no module pkg.trian", "did you mean 'train'?"]),
        (("submit", "nvidia-nothing"), ["does not exist", "submit ... env nvidia-nothing [ARGS]"]),
        (
            ("submit", "srun", "python", "train.py"),
            ["srun is not a training script", "clusterkit submit train", "-framework"],
        ),
        (("submit", "srun", "hostname", "-f"), ["hint: clusterkit submit -- hostname -f (MPI"]),
        (("submit", *TORCHRUN, "trian.py"), ["trian.py does not exist", "did you mean train.py?"]),
        (("submit", *TORCHRUN, "."), ["is a folder"]),
        (("submit", *TORCHRUN, "--nodes", "two", "train.py"), ["--nodes 'two'", "--nodes 4"]),
        (("submit", *TORCHRUN, "--nodes", "0", "train.py"), ["at least 1 node"]),
        (("submit", *TORCHRUN, "--gpus-per-node", "x", "train.py"), ["--gpus-per-node 'x'"]),
        (("submit", *TORCHRUN, "--cluster", "a10", "train.py"), ["'a10'", "did you mean 'a100'?"]),
        (
            ("submit", "--framework", "torchrn", "--cluster", "a10", "train.py"),
            ["--> flag --cluster", "did you mean 'a100'?", "did you mean 'torchrun'?"],
        ),
        (("submit", "--gpus", "4", "train.py"), ["--gpus-per-node 4 (the slots of each node"]),
        (("submit", "-N", "4", "train.py"), ["hint: --nodes 4"]),
        (("submit", "--nnodes=2", "train.py"), ["hint: --nodes 2"]),
        (("submit", "--nproc_per_node", "8", "train.py"), ["hint: --gpus-per-node 8"]),
        (("submit", "--gres=gpu:a100:8", "train.py"), ["hint: --gpus-per-node 8"]),
        (("submit", "--gres", "nvme:1", "train.py"), ["hint: --set sbatch.gres=nvme:1"]),
        (("render", "--ntasks", "6", "train.py"), ["hint: --processes 6"]),
        (("submit", "-np", "4", "train.py"), ["hint: --processes N, which are all ranks (-np"]),
        (("submit", "-np4", "train.py"), ["hint: --processes 4, which"]),
        (("submit", "-ppn", "4", "train.py"), ["hint: --gpus-per-node 4 (the slots of each"]),
        (("submit", "-it", "train.py"), ["hint: clusterkit shell latest"]),
        (
            ("submit", "--mpi=pmix", "train.py"),
            ["hint: --set mpi.pmi=pmix (with mpi.launcher=srun"],
        ),
        (("submit", "--cpu-bind=cores", "train.py"), ["hint: `srun_args:` of the cluster in"]),
        (("submit", "--bind-to", "core", "train.py"), ["hint: --set mpi.bind-to=core"]),
        (("submit", "--mca", "btl", "tcp", "x.py"), ["hint: --env OMPI_MCA_NAME=... (of Open"]),
        (("submit", "--rm", "train.py"), ["hint: leave it out (containers are started and"]),
        (("submit", "--ipc=host", "train.py"), ["hint: `shm_size: host` of the cluster"]),
        (("submit", "--gpu", "8", "train.py"), ["hint: --gpus-per-node 8 (the slots of each"]),
        (("logs", "latest", "--grep", "loss"), ["hint: clusterkit logs JOB | grep loss"]),
        (("hostfile", "--to", "deepspeed"), ["hint: --format deepspeed"]),
        (("submit", "--partition", "gpu", "train.py"), ["hint: --set sbatch.partition=gpu"]),
        (("submit", "-p", "gpu", "train.py"), ["hint: --set sbatch.partition=gpu"]),
        (("submit", "--exclusive", "train.py"), ["hint: --set sbatch.exclusive=\n"]),
        (("submit", "--partition"), ["hint: --set sbatch.partition=VALUE"]),
        (("submit", "--requeue", "x", "train.py"), ["'x' is not a whole number"]),
        (("status", "--partition", "gpu"), ["hint: --cluster (NAME: jobs of one cluster"]),
        (("logs",), ["missing argument", "hint: clusterkit logs latest, or another"]),
        (("cancel",), ["missing argument", "hint: clusterkit cancel latest, or another"]),
        (("status", "--failed"), ["no such option: --failed", "hint: --state failed"]),
        (("bench", "scaling", "--component", "nodes=1", "x.py"), ["no such option: --component"]),
        (("logs", "-n", "5", "latest"), ["no such option: -n", "hint: --tail 5"]),
        (("report", "latest"), ["argument(s) (latest)", "clusterkit status latest --usage"]),
        (("submit", "--restart", "1", "train.py"), ["hint: did you mean --restarts?\n"]),
        (("submit", "--user", "me", "train.py"), ["hint: `user:` of the cluster"]),
        (("submit", "--label", "a=b", "train.py"), ["hint: clusterkit submit --help\n"]),
        (("submit", "--max_restarts", "2", "train.py"), ["hint: --requeue 2 (or --restarts N"]),
        (("submit", "--host", "n1", "train.py"), ["hint: --set sbatch.nodelist=n1 (on Slurm;"]),
        (("submit", "--hostfile", "h", "train.py"), ["hint: `hostfile:` of a cluster of kind"]),
        (("submit", "-o", "out.txt", "train.py"), ["hint: leave it out (clusterkit logs JOB"]),
        (("submit", "--signal=USR1@60", "train.py"), ["hint: --notice 60 (seconds before the"]),
        (("submit", "--export", "ALL", "train.py"), ["hint: --env K=V (once for each"]),
        (("submit", "--requeue", "train.py"), ["hint: a number behind it: --requeue 1\n"]),
        (("submit", "--hang-after", "30s", "train.py"), ["behind it: --hang-after 30\n"]),
        (("status", "-u", "me"), ["hint: leave it out (only your own jobs"]),
        (("status", "-j", "5"), ["hint: clusterkit status 5 (it needs no flag)"]),
        (("logs", "-w", "n1", "latest"), ["hint: --node n1\n"]),
        (("preflight", "-w", "n[1-2]"), ["hint: --hosts n[1-2]\n"]),
        (("cancel", "-u", "me"), ["hint: --all (your own jobs)"]),
        (("cancel", "-t", "pending"), ["hint: --state pending ("]),
        (("exec", "-i", "latest", "bash"), ["hint: -t (a terminal; input it gets anyway)"]),
        (("exec", "--nodes", "2", "latest", "date"), ["hint: --all (on all nodes; on one:"]),
        (("nodes", "run", "-a", "--", "date"), ["hint: leave it out (all nodes of the"]),
        (("estimate", "--model_size", "7B"), ["hint: --params 7B\n"]),
        (("estimate", "--fsdp"), ["hint: --strategy fsdp\n"]),
        (("init", "--hostfile", "h"), ["hint: list them in ./hostfile, a line each, then"]),
        (("init", "--nodes", "n[1-2]"), ["hint: --hosts n[1-2] (machines over ssh)"]),
        (("init", "--hosts", "n[1-", "--output", "x.yaml"), ["--hosts"]),
        (("init", "--hosts", "", "--output", "x.yaml"), ["hint: clusterkit init --hosts n[1-4]"]),
        (("images", "push", "x"), ["hint: clusterkit images build NAME --push"]),
        (("bench", "nccl"), ["hint: clusterkit bench collectives\n"]),
        (("bench", "collectives", "-b", "8"), ["hint: --sizes (FIRST:LAST, such as"]),
        (("wait", "-t", "5", "latest"), ["hint: timeout 5 clusterkit wait latest\n"]),
        (("wait", "a", "b", "--timeout=1h"), ["hint: timeout 1h clusterkit wait a b\n"]),
        (("preflight", "n1", "n2"), ["hint: nodes by name: --hosts n1,n2\n"]),
        (
            ("exec", "--", "hostname"),
            [
                "hint: in a job: clusterkit exec JOB -- hostname; on nodes:",
                "clusterkit nodes run -- hostname",
            ],
        ),
        (
            ("exec", "--", "uname", "-a"),
            [
                "error: 'uname' was taken for JOB, which stands before `--`",
                "clusterkit exec JOB -- uname -a",
                "clusterkit nodes run -- uname -a",
            ],
        ),
        (("exec", "4711"), ["hint: clusterkit exec 4711 -- COMMAND\n"]),
        (("shell", "x", "-c", "nvidia-smi"), ["hint: clusterkit exec JOB -- nvidia-smi"]),
        (("shell", "x", "--", "nvidia-smi"), ["command: clusterkit exec JOB -- nvidia-smi"]),
        (("preflight", "--nodes", "n[1-2]"), ["a number; nodes by name: --hosts 'n[1-2]'"]),
        (("sinfo",), ["hint: clusterkit nodes free (what Slurm has free; what nodes do:"]),
        (("explain", "tensorboard"), ["hint: clusterkit forward JOB PORT"]),
        (("submit", "--notify", "train.py"), ["hint: --on-end 'mail ADDRESS' (or 'slack"]),
        (("submit", "--detach", "train.py"), ["hint: leave it out (submit returns at once"]),
        (("submit", "--workdir", "/x", "train.py"), ["hint: cd there first"]),
        (("submit", "--retries", "3", "train.py"), ["hint: --requeue 3 (or --restarts N"]),
        (("logs", "-r", "1", "latest"), ["no such option: -r", "hint: --rank 1"]),
        (("submit", *TORCHRUN, "--secret", "T=hush", "train.py"), ["--secret T=...", "export T,"]),
        (
            ("submit", "--venv", "x", "train.py"),
            ["hint: `python:` of the cluster"],
        ),
        (("notebook",), ["no such command 'notebook'", "hint: clusterkit forward JOB PORT"]),
        (("submit", *TORCHRUN, "--env", "A", "train.py"), ["no `=`", "--env A=VALUE"]),
        (("submit", *TORCHRUN, "--set", "mem=1G", "train.py"), ["--set sbatch.mem=..."]),
        (("submit", *TORCHRUN, "--exclude", "n[3-1]", "train.py"), ["n[3-1]", "^"]),
        (("submit", *TORCHRUN, "-c", "rack", "--exclude", "n9", "train.py"), ["has no host n9"]),
        (("submit", *TORCHRUN, "--sync", "", "train.py"), ["--sync '': the name is empty"]),
        (("submit", *TORCHRUN, "--sync", "nodir", "train.py"), ["--sync nodir: no such folder"]),
        (("submit", *TORCHRUN, "--sync", "train.py", "train.py"), ["is a file, not a folder"]),
        (("nodes", "prepare", "-c", "rack", "--hosts", ""), ["--hosts: the list is empty"]),
        (("submit", *TORCHRUN, "--container", "dokcer", "train.py"), ["did you mean 'docker'?"]),
        (("submit", *TORCHRUN, "--preflight", "fast", "train.py"), ["known: auto, full, off"]),
        (("submit", *TORCHRUN, "--secret", "NOT_SET", "train.py"), ["NOT_SET", "export it"]),
        (
            ("submit", *TORCHRUN, "--cluster", "rack", "train.py"),
            ["n1: name or service not known", "clusterkit preflight"],
        ),
        (("submit", *TORCHRUN, "--job", "no.yaml", "train.py"), ["no.yaml"]),
        (
            ("submit", *TORCHRUN, "--node", "2", "train.py"),
            ["no such option: --node", "did you mean --nodes"],
        ),
        (("sumbit",), ["no such command 'sumbit'", "did you mean 'submit'?"]),
        (("stop",), ["no such command 'stop'", "hint: clusterkit cancel JOB"]),
        (("rm",), ["no such command 'rm'", "hint: clusterkit explain old-runs"]),
        (("render", "sbatch", "train.py"), ["hint: clusterkit render --only sbatch train.py"]),
        (("render", "compose"), ["hint: clusterkit render --only compose SCRIPT"]),
        (("render", "config"), ["hint: clusterkit render --only config"]),
        (
            ("submit", *TORCHRUN, "true && echo b"),
            ["hint: a line of shell: clusterkit submit ... -- bash -c 'true && echo b'"],
        ),
        (
            ("submit", *TORCHRUN, "pkg.train"),
            ["hint: a module: clusterkit submit ... -m pkg.train [ARGS]"],
        ),
        (("submit", *TORCHRUN, "train.p"), ["hint: did you mean train.py?"]),
        (("submit", *TORCHRUN, "job.slurm"), ["hint: looked in "]),
        (("exec", "latest", "--rank", "1", "--", "date"), ["hint: --node 1 (a node's name"]),
        (("images", "prove", "torch"), ["hint: clusterkit images test NAME\n"]),
        (("config", "validate"), ["hint: clusterkit config show (it reads all files"]),
        (("upgrade",), ["hint: pip install --upgrade FILE.whl"]),
        (("uninstall",), ["hint: pip uninstall clusterkit-launch"]),
        (("ps",), ["no such command 'ps'", "hint: clusterkit status"]),
        (("render", *TORCHRUN, "--only", "sbath", "train.py"), ["did you mean 'sbatch'?"]),
    ],
)
def test_mistakes_exit_2_and_say_what_to_type(
    desk: Path, words: tuple[str, ...], said: list[str]
) -> None:
    done = run(desk, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert max(len(line) for line in done.stderr.splitlines()) <= 100
    for text in said:
        assert text in done.stderr
    assert not list(desk.glob("runs/*"))


def test_without_mpirun_no_job_starts_that_needs_it(desk: Path) -> None:
    tools = desk / "bin"
    tools.mkdir()
    for name in ("bash", "python3"):
        (tools / name).symlink_to(shutil.which(name) or "")
    words = ("submit", "--cluster", "local", "--framework", "mpi", "--dry-run", "train.py")
    done = run(desk, *words, PATH=str(tools))
    assert done.returncode == 2
    assert "this machine does not have" in done.stderr
    named = ("--set", f"mpi.mpirun={shutil.which('true')}")
    assert run(desk, *words[:-1], *named, "train.py", PATH=str(tools)).returncode == 0
    (tools / "mpirun").symlink_to("/bin/true")
    assert run(desk, *words, PATH=str(tools)).returncode == 0


@pytest.mark.parametrize(
    ("words", "framework", "command"),
    [
        (("train.py", "-x"), "torchrun", ("train.py", "-x")),
        (("-m", "pkg.train", "-x"), "torchrun", ("--module", "pkg.train", "-x")),
        (("python", "-u", "-m", "pkg.train"), "torchrun", ("--module", "pkg.train")),
        (("python3", "train.py"), "torchrun", ("train.py",)),
        (("--", "python", "-m", "pkg.train"), "torchrun", ("--module", "pkg.train")),
        (("--", "python3", "-c", "pass"), "env", ("python3", "-c", "pass")),
        (("run.sh", "-x"), "env", ("bash", "run.sh", "-x")),
        (("--", "echo", "-x"), "env", ("echo", "-x")),
        (("-f", "torchrun", "run.sh"), "torchrun", ("--no-python", "bash", "run.sh")),
        (("-f", "accelerate", "--", "echo"), "accelerate", ("--no_python", "echo")),
        (("-f", "deepspeed", "--", "echo", "-x"), "deepspeed", ("1", "echo", "-x")),
        (("-f", "horovod", "-m", "pkg.train"), "horovod", ("-u", "-m", "pkg.train")),
        (("-f", "mpi", "-m", "pkg.train"), "mpi", ("-u", "-m", "pkg.train")),
    ],
)
def test_any_program_runs_under_a_framework_that_fits_it(
    desk: Path, words: tuple[str, ...], framework: str, command: tuple[str, ...]
) -> None:
    done = run(desk, "render", "-c", "a100", "--json", *words)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["plan"]
    assert plan["framework"] == framework
    assert tuple(plan["command"]["argv"][-len(command) :]) == command


def test_the_framework_of_jobs_that_name_none(desk: Path) -> None:
    config = desk / "clusterkit.yaml"
    config.write_text(f"default_framework: horovod\n{CONFIG}")
    assert "horovod on 1 node" in run(desk, "submit", "--dry-run", "-c", "a100", "run.sh").stdout
    shown = run(desk, "config", "show", "--origin").stdout
    assert re.search(r"default_framework +horovod +clusterkit.yaml:1\n", shown)
    config.write_text(f"default_framework: horovd\n{CONFIG}")
    said = run(desk, "submit", "--dry-run", "train.py").stderr
    assert "clusterkit.yaml:1" in said
    assert "did you mean 'horovod'?" in said


def test_an_error_is_a_document_as_well(desk: Path) -> None:
    done = run(desk, "submit", "--json", *TORCHRUN, "trian.py")
    assert done.returncode == 2
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    assert document["error"]["problems"][0]["hint"] == "did you mean train.py?"


@pytest.mark.parametrize(
    ("words", "document"),
    [
        (("submit", "--json", "--nope"), True),
        (("submit", "--gpus", "4", "--json", "train.py"), True),
        (("submit", "-n2", "--nodse", "4", "--json", "train.py"), True),
        (("submit", "--gpus", "4", "train.py", "--json"), False),
        (("submit", "--nope", "--", "train.py", "--json"), False),
        (("submit", *TORCHRUN, "trian.py", "--json"), False),
        (("submit", "--name", "--json", *TORCHRUN, "trian.py"), False),
        (("logs", "--json"), True),
        (("status", "one", "two", "--json"), True),
        (("sumbit", "--json"), True),
        (("config", "shwo", "--json"), True),
    ],
)
def test_a_document_stands_for_every_error_where_one_was_asked_for(
    desk: Path, words: tuple[str, ...], *, document: bool
) -> None:
    done = run(desk, *words)
    assert done.returncode == 2
    assert "error: " in done.stderr
    if document:
        parsed = json.loads(done.stdout)
        assert parsed["schema"] == 1
        assert parsed["error"]["problems"][0]["message"] in done.stderr
    else:
        assert done.stdout == ""


def test_whose_python_keepers_use_is_said_where_the_file_system_is_shared(desk: Path) -> None:
    done = run(desk, "nodes", "prepare", "-c", "rack", "--hosts", "n1", PATH="/nowhere")
    assert done.returncode == 1
    assert "rack shares a file system, so its node agents use this machine's Python" in done.stderr


def test_no_slurm_on_this_machine(desk: Path) -> None:
    python = Path(sys.executable).parent
    done = run(desk, "submit", *TORCHRUN, "train.py", PATH=f"{python}:/nowhere")
    assert done.returncode == 2
    assert "sbatch" in done.stderr
    assert "hint:" in done.stderr


@pytest.mark.parametrize(
    ("kind", "name", "who"),
    [
        ("slurm", r"a\b", "Slurm takes \\ in"),
        ("slurm", "100%5", "Slurm takes %5 in"),
        ("slurm", "a%%%b", "Slurm takes %%% in"),
        ("slurm", "a%j", "submitit takes %j in"),
        ("local", "50%t", "submitit takes %t in"),
    ],
)
def test_a_folder_that_no_file_of_a_job_can_be_named_in(
    desk: Path, kind: str, name: str, who: str
) -> None:
    runs = json.dumps(str(desk / name))
    (desk / "clusterkit.yaml").write_text(f"clusters: {{c: {{kind: {kind}, run_dir: {runs}}}}}\n")
    done = run(desk, "submit", "--cluster", "c", *TORCHRUN, "--preflight", "off", "train.py")
    assert done.returncode == 2
    assert f"no job can have its files in {desk / name}: {who}" in done.stderr
    assert "set `run_dir`" in done.stderr
    assert not (desk / name).exists()


@pytest.mark.parametrize("name", ["#[1-2]{a,b}", "100%", "a%N%%n", "$x `y` 'z' \"q\" &;|*?!~"])
def test_other_folders_stand_in_the_way_of_no_job(desk: Path, name: str) -> None:
    runs = json.dumps(str(desk / name))
    (desk / "clusterkit.yaml").write_text(f"clusters: {{c: {{kind: slurm, run_dir: {runs}}}}}\n")
    done = run(desk, "submit", "--cluster", "c", *TORCHRUN, "--dry-run", "train.py")
    assert done.returncode == 0, done.stderr


def test_a_dry_run_shows_the_script_and_leaves_nothing(desk: Path) -> None:
    done = run(desk, "submit", "--dry-run", *TORCHRUN, "--nodes", "2", "train.py", "--lr", "1")
    assert done.returncode == 0
    assert done.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=train\n")
    assert "would run   sbatch job.sbatch" in done.stderr
    assert not (desk / "runs").exists()


def test_a_dry_run_on_a_terminal_hides_nothing_behind_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plans.make_plan(plans.make_cluster(tmp_path, kind=ClusterKind.SLURM))
    rendered = render(plan)
    (text,) = (file.text for file in rendered if file.name == "job.sbatch")
    show_script(plan, rendered)
    assert capsys.readouterr().out == text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    show_script(plan, rendered)
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = len(text.splitlines())
    assert f"  script      job.sbatch, {lines} lines: the same command | less\n" in shown.err


def test_a_dry_run_shows_the_very_text_of_render(desk: Path) -> None:
    words = (*TORCHRUN, "--nodes", "2", "train.py")
    shown = run(desk, "submit", "--dry-run", *words).stdout
    assert run(desk, "render", "--only", "sbatch", "--stdout", *words).stdout == shown
    assert run(desk, "render", "--only", "sbatch", "--output", "-", *words).stdout == shown


def test_secrets_do_not_show(desk: Path) -> None:
    done = run(desk, "submit", "--dry-run", "--json", *TORCHRUN, "--secret", "SECRET", "train.py")
    assert json.loads(done.stdout)["plan"]["secrets"] == ["SECRET"]
    assert "hush" not in done.stdout + done.stderr


def test_a_value_that_looks_like_a_secret_is_warned_of(desk: Path) -> None:
    words = ("submit", "--dry-run", *TORCHRUN)
    secrets = ("WANDB_API_KEY=abc", "HF_TOKEN=abc", "DB_PASSWORD=abc", "MY_SECRET_OF_ALL=abc")
    warned = run(desk, *words, *(f"--env={pair}" for pair in secrets), "train.py")
    assert warned.returncode == 0
    assert "WANDB_API_KEY, HF_TOKEN, DB_PASSWORD and 1 more" in warned.stderr
    assert "export it in your shell, and --secret WANDB_API_KEY" in warned.stderr
    begins = run(desk, *words, "--env=AWS_SECRET_ACCESS_KEY=/a/b", "train.py")
    assert "--secret AWS_SECRET_ACCESS_KEY" in begins.stderr
    (desk / "job.yaml").write_text("script: train.py\nenv: {HF_TOKEN: abc}\n")
    assert "--secret HF_TOKEN" in run(desk, "render", "--stdout", "--job", "job.yaml").stderr
    others = ("TOKENIZERS_PARALLELISM=false", "PASSWORD_FILE=secret", "SSH_KEY=/etc/key", "A_KEY=")
    harmless = (
        "PAD_TOKEN=<pad>",
        "MASK_TOKEN=<mask>",
        "SORT_KEY=length",
        "SECRETS_DIR=/run/secrets",
    )
    clean = run(desk, *words, *(f"--env={pair}" for pair in (*others, *harmless)), "train.py")
    assert (clean.returncode, "--secret" in clean.stderr) == (0, False)


@pytest.mark.parametrize(
    ("time", "said", "limit"),
    [
        ("4:00", "--time 4:00 means 4 min (MM:SS); if you meant hours: --time 4:00:00", "4 min"),
        ("4:00:00", "", "4 h"),
        ("1-4:00", "", "28 h"),
        ("30", "", "30 min"),
        ("240", "", "4 h"),
        (
            "24:00",
            "--time 24:00 means 24 min (MM:SS); if you meant hours: --time 24:00:00",
            "24 min",
        ),
        ("90:00", "", "1:30 h"),
    ],
)
def test_a_time_limit_is_shown_and_one_warned_of_that_may_be_meant_in_hours(
    desk: Path, time: str, said: str, limit: str
) -> None:
    done = run(desk, "submit", "--dry-run", *TORCHRUN, "--time", time, "train.py")
    assert done.returncode == 0
    assert said in done.stderr
    assert ("hours:" in done.stderr) == bool(said)
    assert f"processes, cluster a100, limit {limit}\n" in done.stderr


@pytest.mark.parametrize(("more", "each"), [((), 2), (("--set", "env.per-node=1"), 1)])
def test_how_often_a_plain_command_starts_on_a_node_is_shown(
    desk: Path, more: tuple[str, ...], each: int
) -> None:
    words = ("--nodes", "2", "--gpus-per-node", "2", *more, "--", "date")
    done = run(desk, "submit", "--dry-run", "-c", "a100", *words)
    assert f"  runs        {2 * each} times, {each} on each node" in done.stderr
    assert ("; once per node: --set env.per-node=1\n" in done.stderr) == (each > 1)


def test_a_dry_run_shows_what_is_asked_for_at_the_end_of_a_pipe(desk: Path) -> None:
    words = [*TORCHRUN, "--nodes", "2", "--gpus-per-node", "4", "--time", "20", "train.py"]
    command = [sys.executable, "-m", "clusterkit", "submit", "--dry-run", "-c", "a100", *words]
    shown = subprocess.check_output(command, cwd=desk, text=True, stderr=subprocess.STDOUT)
    script, end, summary = shown.rpartition('exit "$ck_status"\n')
    assert script.startswith("#!/bin/bash\n")
    assert end
    assert "  asks for    2 nodes, 8 GPUs, partition " in summary
    assert ", time limit 20 min\n" in summary
    assert "  would run   sbatch job.sbatch, in " in summary


def test_a_configuration_is_rendered_without_a_script(desk: Path) -> None:
    words = ("--framework", "deepspeed", "--ds-preset", "zero3", "--only", "config", "--stdout")
    done = run(desk, "render", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run(desk, "render", *words, "train.py").stdout
    document = json.loads(run(desk, "render", *words[:-1], "--json").stdout)
    assert document["plan"] is None  # it would be that of a script which nobody has named
    assert document["files"][0]["text"] == done.stdout
    both = run(desk, "render", *words, "--only", "node")
    assert "no training script" in both.stderr


def test_render_writes_and_diff_tells_what_changed(desk: Path) -> None:
    words = (*TORCHRUN, "--nodes", "2", "train.py")
    done = run(desk, "render", *words)
    assert done.stdout.split() == [
        f"rendered/{name}" for name in ("job.sbatch", "node.sh", "compose.yaml", "compose-node.sh")
    ]
    assert os.access(desk / "rendered" / "node.sh", os.X_OK)
    assert run(desk, "render", "--diff", *words).returncode == 0
    changed = run(desk, "render", "--diff", "--time", "1:00:00", *words)
    assert changed.returncode == 1
    assert "+#SBATCH --time=1:00:00" in changed.stdout
    document = json.loads(run(desk, "render", "--diff", "--json", "--time", "5", *words).stdout)
    assert document["changed"] == ["job.sbatch"]


def test_a_hostfile_where_the_hosts_are_known(desk: Path) -> None:
    words = (*TORCHRUN, "--nodes", "2", "train.py")
    known = run(desk, "render", "--only", "hostfile", "--stdout", "--cluster", "rack", *words)
    assert known.stdout == "n1 slots=2\nn2 slots=2\n"
    unknown = run(desk, "render", "--only", "hostfile", "--stdout", *words)
    assert unknown.stdout == ""
    assert "no hostfile" in unknown.stderr


def test_what_a_tool_would_misread_in_a_hostfile_is_told(desk: Path) -> None:
    (desk / "rack.hosts").write_text("n[1-2] slots=8\n")
    (desk / "clusterkit.yaml").write_text("clusters: {rack: {kind: ssh, hostfile: rack.hosts}}\n")
    words = ("--cluster", "rack", *TORCHRUN, "train.py")
    for verb in (
        ("submit", "--dry-run", *words),
        ("render", "--stdout", *words),
        ("config", "show"),
        ("hostfile", "--cluster", "rack"),
    ):
        done = run(desk, *verb)
        assert done.returncode == 0
        assert "warning: DeepSpeed takes a hostlist" in done.stderr
        assert "rack.hosts:1:1" in done.stderr
    elsewhere = run(desk, "submit", "--dry-run", *TORCHRUN, "train.py")
    assert "DeepSpeed" not in elsewhere.stderr


def test_flags_win_over_the_job_file_and_variables_between(desk: Path) -> None:
    (desk / "job.yaml").write_text(
        "framework: deepspeed\nnodes: 3\nscript: train.py\nargs: [--a]\nenv: {A: 1, B: 2}\n"
    )

    def plan(*words: str, **env: str) -> dict[str, object]:
        done = run(desk, "submit", "--dry-run", "--json", "--job", "job.yaml", *words, **env)
        assert done.returncode == 0, done.stderr
        document: dict[str, object] = json.loads(done.stdout)["plan"]
        return document

    made = plan()
    assert (made["framework"], made["nodes"], made["args"]) == ("deepspeed", 3, ["--a"])
    assert plan(CLUSTERKIT_NODES="4")["nodes"] == 4
    assert plan("--nodes", "5", CLUSTERKIT_NODES="4")["nodes"] == 5
    assert plan("--env", "B=3")["env"] == {"A": "1", "B": "3"}


def test_a_wrong_job_file_is_explained_with_its_lines(desk: Path) -> None:
    (desk / "job.yaml").write_text("framework: torchrun\nnode: 2\nscrpt: train.py\n")
    done = run(desk, "submit", "--job", "job.yaml")
    assert done.returncode == 2
    assert "job.yaml:2:1" in done.stderr
    assert "did you mean 'nodes'?" in done.stderr
    assert "job.yaml:3:1" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cluster: a10\n", ["job.yaml:1:10", "cluster: a10", "did you mean 'a100'?"]),
        ("framework: torchrn\n", ["job.yaml:1:12", "did you mean 'torchrun'?"]),
        ("cluster: a10\nframework: torchrn\n", ["job.yaml:1:10", "job.yaml:2:12"]),
        ("framework: torchrun\nds_preset: zero3\n", ["job.yaml:2:12", "--framework deepspeed"]),
        ("framework: torchrun\nnodes: 4:2\n", ["job.yaml:2:8", "--nodes 2:4"]),
        ("framework: deepspeed\nnodes: 2:4\n", ["job.yaml:2:8", "cannot change"]),
        ("framework: torchrun\nset: {sbtch.mem: 1G}\n", ["job.yaml:2:7", "sbatch.mem"]),
        ("framework: torchrun\nenv:\n  CK_PORT: 1\n", ["job.yaml:3:3", "cannot be set"]),
        ("framework: torchrun\nscript: trian.py\n", ["job.yaml:2:9", "did you mean train.py?"]),
        ("framework: torchrun\npreflight: fast\n", ["job.yaml:2:12", "full"]),
        ("framework: torchrun\nimage: x\n", ["job.yaml:2:8", "--container"]),
    ],
)
def test_a_wrong_value_of_a_job_file_is_shown_where_it_stands(
    desk: Path, text: str, said: list[str]
) -> None:
    script = "" if "script" in text else "script: train.py\n"
    (desk / "job.yaml").write_text(text + script)
    done = run(desk, "submit", "--job", "job.yaml")
    assert done.returncode == 2
    assert "  ^" in done.stderr
    for words in said:
        assert words in done.stderr


def test_a_flag_makes_up_for_a_name_in_the_job_file_that_is_unknown_here(desk: Path) -> None:
    (desk / "job.yaml").write_text("cluster: elsewhere\nscript: train.py\nframework: torchrn\n")
    done = run(desk, "submit", "--dry-run", "--job", "job.yaml", "--cluster", "rack", *TORCHRUN)
    assert done.returncode == 0, done.stderr
    done = run(desk, "submit", "--dry-run", "--job", "job.yaml", "--cluster", "rakc")
    assert "--> flag --cluster" in done.stderr
    assert "job.yaml:3:12" in done.stderr


def test_a_wrong_name_in_a_variable_is_blamed_on_the_variable(desk: Path) -> None:
    done = run(desk, "submit", "train.py", CLUSTERKIT_FRAMEWORK="torchrn")
    assert "--> environment variable CLUSTERKIT_FRAMEWORK" in done.stderr


def bare_python(folder: Path) -> Path:
    """Make an interpreter of this Python that has no packages at all."""
    venv.create(folder / "bare", symlinks=True, with_pip=False)
    return folder / "bare" / "bin" / "python3"


def test_a_package_that_the_python_of_a_local_job_lacks(desk: Path) -> None:
    python = bare_python(desk)
    local = ("--cluster", "local", "--framework", "deepspeed", "train.py")
    done = run(desk, "submit", *local, PATH=f"{python.parent}:{os.environ['PATH']}")
    assert done.returncode == 2
    assert f"needs the package deepspeed, which {python} does not have" in done.stderr
    assert f"hint: {python} -m pip install 'deepspeed>=0.16' ninja 'torch>=2.6'" in done.stderr
    assert "--container docker --image clusterkit/deepspeed:cuda" in done.stderr
    assert "`python:` of cluster local" in done.stderr
    assert not list(desk.glob("runs/*"))
    path = f"{python.parent}:{os.environ['PATH']}"
    assert run(desk, "submit", "--dry-run", *local, PATH=path).returncode == 0


def test_only_a_python_that_can_be_known_is_looked_into(desk: Path) -> None:
    python = str(bare_python(desk))
    job = JobSpec(framework="torchrun", script="train.py")

    def plan(**values: Any) -> LaunchPlan:
        cluster = ClusterSpec(name="local", kind=ClusterKind.LOCAL, **values)
        return make_plan(job, cluster, workdir=str(desk))

    with pytest.raises(UserError, match="torch"):
        require_package(plan(python=python))
    with pytest.raises(UserError, match="no /nowhere/python on this machine"):
        require_package(plan(python="/nowhere/python"))
    require_package(plan(python=python, setup=("source activate",)))
    require_package(plan(python=python, modules=("python",)))
    package = desk / "elsewhere" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('it is not to be imported')")
    require_package(plan(python=python, env={"PYTHONPATH": str(package.parent)}))


def test_a_container_engine_that_is_missing_or_silent_is_refused_beforehand(desk: Path) -> None:
    image = ("--image", "x", "train.py")
    tools = bare_python(desk).parent
    for engine in ("apptainer", "docker"):
        done = run(
            desk, "submit", "--cluster", "local", "--container", engine, *image, PATH=str(tools)
        )
        assert done.returncode == 2
        assert f"there is no {engine} on this machine to run the image with" in done.stderr
    docker = tools / "docker"
    docker.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon at x' >&2\nexit 1\n")
    docker.chmod(0o755)
    done = run(
        desk, "submit", "--cluster", "local", "--container", "docker", *image, PATH=str(tools)
    )
    assert "error: docker: Cannot connect to the Docker daemon" in done.stderr
    assert "hint: sudo systemctl start docker" in done.stderr
    docker.write_text(
        "#!/bin/sh\n[ $DOCKER_HOST ] && exit\n"
        "echo 'permission denied while trying to connect to the Docker daemon socket' >&2; exit 1\n"
    )
    plan = plans.make_plan(
        plans.make_cluster(desk),
        container=ContainerPlan(image="x", runtime=ContainerRuntime.DOCKER),
        env={"PATH": str(tools)},
    )
    with pytest.raises(UserError, match="sudo usermod -aG docker"):
        require_engine(plan)
    # The job's variables are there where docker starts.
    require_engine(dataclasses.replace(plan, env={**plan.env, "DOCKER_HOST": "unix:///run/x"}))
    assert not list(desk.glob("runs/*"))


def test_a_run_folder_that_cannot_be_written(desk: Path) -> None:
    (desk / "clusterkit.yaml").write_text("clusters: {local: {run_dir: /proc/nothing}}\n")
    done = run(desk, "submit", *TORCHRUN, "--cluster", "local", "train.py")
    assert done.returncode == 2
    assert "/proc/nothing" in done.stderr


def test_options_after_the_script_are_the_scripts(desk: Path) -> None:
    words = ("submit", "--dry-run", "--json", *TORCHRUN, "train.py", "--nodes", "7", "--json", "-n")
    done = run(desk, *words)
    assert "--nodes stands after train.py and goes to the script" in done.stderr
    document = json.loads(done.stdout)
    assert document["plan"]["nodes"] == 1
    assert document["plan"]["args"] == ["--nodes", "7", "--json", "-n"]


def test_a_dry_run_behind_the_script_starts_no_job(desk: Path) -> None:
    done = run(desk, "submit", "--name", "x", "train.py", "--nodes", "2", "--lr", "3", "--dry-run")
    assert done.returncode == 2
    again = "clusterkit submit --nodes 2 --dry-run --name x train.py --lr 3\n"
    assert f"hint: {again}" in done.stderr
    assert "if the script takes it: clusterkit submit ... -- train.py --dry-run" in done.stderr
    assert not list(desk.glob("runs/*"))
    assert run(desk, *again.split()[1:]).returncode == 0
    module = run(desk, "submit", "-m", "pkg.train", "--dry-run")
    assert "hint: clusterkit submit --dry-run -m pkg.train\n" in module.stderr
    assert "takes it: clusterkit submit ... -m -- pkg.train --dry-run" in module.stderr
    swept = run(desk, "submit", "--array", "lr=1,2", "train.py", "--lr", "{lr}", "--dry-run")
    assert "hint: clusterkit submit --dry-run --array lr=1,2 train.py --lr '{lr}'\n" in swept.stderr
    (desk / "job.yaml").write_text("script: train.py\nargs: [--dry-run]\n")
    filed = run(desk, "submit", "--json", "-c", "rack", "--job", "job.yaml")
    assert "would go to the script" not in filed.stderr
    meant = run(desk, "submit", "--json", "-c", "rack", "--", "train.py", "--dry-run")
    assert "would go to the script" not in meant.stderr


def test_a_script_that_is_not_there_is_rendered_with_a_warning(desk: Path) -> None:
    done = run(desk, "render", *TORCHRUN, "tarin.py")
    assert done.returncode == 0, done.stderr
    assert f"warning: no tarin.py here; the job looks for it in {desk}" in done.stderr
    assert "warning" not in run(desk, "render", *TORCHRUN, "train.py").stderr


def test_far_more_processes_than_processors_are_warned_of(desk: Path) -> None:
    words = ("submit", "--dry-run", "--cluster", "local", "-f", "env", "--nodes", "2", "train.py")
    many = run(desk, *words[:-1], "--gpus-per-node", str(32 * (os.cpu_count() or 1)), "train.py")
    assert many.returncode == 0, many.stderr
    assert many.stderr.count("warning: ") == 1
    assert "processes on this machine, which has" in many.stderr
    assert "warning: " not in run(desk, *words).stderr


def test_a_job_here_that_could_tell_nobody_is_warned_of(desk: Path) -> None:
    words = ("submit", "--dry-run", "--on-end", "slack NO_HOOK", "--on-failure", "run true")
    here = run(desk, *words, "--cluster", "local", "train.py").stderr
    assert here.count("warning") == 1
    assert "warning: `slack NO_HOOK` would fail: NO_HOOK is not set on" in here
    assert "NO_HOOK" not in run(desk, *words, "train.py").stderr  # the nodes may have it


def test_a_job_beside_slurm_that_no_configuration_names_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("sbatch", ""), ("sinfo", "echo gpu*\n")):
        (tools / name).write_text(f"#!/bin/sh\n{text}")
        (tools / name).chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"

    def warned(*words: str, **env: str) -> bool:
        done = run(tmp_path, "submit", "--dry-run", *words, "train.py", PATH=path, **env)
        assert done.returncode == 0, done.stderr
        lines = done.stderr[done.stderr.find("warning: ") :].splitlines()[:2]
        if done.stderr.count("warning: ") == 0:
            return False
        assert lines[0].startswith("warning: Slurm is here"), done.stderr
        assert "`clusterkit init` writes a configuration for it" in lines[1]
        return all(len(line) <= 80 for line in lines)

    assert warned()
    assert not warned("--cluster", "local")
    assert not warned(CLUSTERKIT_DEFAULT_CLUSTER="local")
    assert not warned(SLURM_JOB_ID="7")  # on nodes of one's own
    (tools / "sinfo").write_text("#!/bin/sh\nexit 1\n")  # Slurm's tools, and no Slurm
    assert not warned()
    (tools / "sinfo").write_text("#!/bin/sh\necho gpu*\n")
    (tmp_path / "clusterkit.yaml").write_text("clusters: {}\n")
    assert not warned()


def test_one_compose_file_is_for_one_host(desk: Path) -> None:
    words = ("render", "--only", "compose", "--stdout", "--cluster", "local", "--nodes", "2")
    told = run(desk, *words, "train.py").stderr
    by_host = ("--container", "compose", "--image", "x/y")
    assert told == (
        "compose.yaml runs the job on one host, not on 2 nodes\n"
        "hint: --container compose writes a file for each host\n"
    )
    assert run(desk, *words, *by_host, "train.py").stderr == ""


def test_a_script_for_another_framework_is_warned_of_once(desk: Path) -> None:
    (desk / "train.py").write_text("import horovod.torch as hvd\n\nhvd.init()\n")
    words = (*TORCHRUN, "--nodes", "2", "--array", "lr=1,2", "train.py", "{lr}")
    for verb in (("submit", "--dry-run"), ("render",), ("submit", "--dry-run", "--json")):
        done = run(desk, *verb, *words)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("warning:") == 1
        assert "train.py is written for Horovod, and torchrun is to start it" in done.stderr
        assert "  --> train.py:3\n3 | hvd.init()\nhint: --framework horovod\n" in done.stderr
    for fitting in ((*TORCHRUN, "--gpus-per-node", "1"), ("--framework", "horovod")):
        done = run(desk, "submit", "--dry-run", *fitting, "train.py")
        assert "warning:" not in done.stderr
