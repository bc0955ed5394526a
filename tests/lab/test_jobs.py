"""Jobs on the practice cluster that go wrong, are ended, or carry difficult values."""

from __future__ import annotations

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

from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers import lab_scripts
from tests.helpers.desk import Desk
from tests.helpers.render_cases import NASTY, NASTY_ARGS

pytestmark = pytest.mark.lab

TELL = """
import json, os, sys
rank = os.environ.get("RANK") or os.environ["HOROVOD_RANK"]
with open(f"rank-{rank}.json", "w") as out:
    json.dump({"argv": sys.argv[1:], "env": dict(os.environ)}, out)
print("told by", rank)
"""
SLEEP = """
import os, time
print("asleep", flush=True)
time.sleep(300)
"""
FRAMEWORKS = ("torchrun", "deepspeed", "horovod")
THREE = ("--nodes", "3")


def leftovers(desk: Desk, script: str) -> dict[str, list[Any]]:
    """Return the processes that still run `script`, by host."""
    found = {host: desk.lab.processes(host, script) for host in desk.lab.nodes}
    return {host: processes for host, processes in found.items() if processes}


def test_values_arguments_and_secrets_reach_every_rank(desk: Desk) -> None:
    script = desk.write("tell.py", TELL)
    (desk.folder / "job.yaml").write_text(json.dumps({"env": NASTY}))
    leaks = {"SLURM_CPU_BIND": "mask_cpu:0x8", "SBATCH_QOS": "wrong", "PMI_RANK": "7"}
    done = desk.submit(
        "--wait", "--framework", "torchrun", *THREE, "--job", "job.yaml", "--secret", "TOKEN",
        script, *NASTY_ARGS,
        env={"TOKEN": "hush-5a1e", **leaks},
    )  # fmt: skip
    assert done["state"] == "succeeded"
    for rank in range(6):
        told = json.loads((desk.folder / f"rank-{rank}.json").read_text())
        assert tuple(told["argv"]) == NASTY_ARGS
        assert {name: told["env"][name] for name in NASTY} == NASTY
        assert told["env"]["TOKEN"] == "hush-5a1e"
        assert told["env"]["SLURM_CONF"]
        assert told["env"].get("PMI_RANK") != "7"
        assert told["env"].get("SLURM_CPU_BIND") != leaks["SLURM_CPU_BIND"]
        assert "SBATCH_QOS" not in told["env"]


ECHO = "echo rank $RANK of $WORLD_SIZE"


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ("lab", ("run.sh",)),
        ("rack", ("--", "sh", "-c", ECHO)),
        ("lab", ("-m", "package.tell")),
        ("rack", ("--framework", "deepspeed", "run.sh")),
    ],
)
def test_any_program_is_every_rank(desk: Desk, cluster: str, words: tuple[str, ...]) -> None:
    desk.write("run.sh", f"{ECHO}\n")
    (desk.folder / "package").mkdir()
    tells = "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
    desk.write("package/tell.py", tells)
    done = desk.submit("--wait", "-c", cluster, "--nodes", "2", "--gpus-per-node", "1", *words)
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    assert {f"rank {rank} of 2" for rank in range(2)} <= set(re.findall("rank . of 2", output))


def test_a_secret_is_in_one_private_file_only(desk: Desk) -> None:
    script = desk.write("sleep.py", SLEEP)
    done = desk.submit(
        "--framework", "env", *THREE, "--secret", "TOKEN", script, env={"TOKEN": "hush-77fe"}
    )
    wait_for_output(desk, done["job_id"], "asleep")
    said = desk.lab.run("head", ["scontrol", "show", "job", done["job_id"]]).stdout
    said += "".join(
        desk.lab.run(host, ["ps", "axww", "-o", "args"]).stdout for host in desk.lab.nodes
    )
    assert "hush-77fe" not in said
    run = desk.folder / "runs" / Path(done["run_dir"]).name
    holders = [
        path for path in run.rglob("*") if path.is_file() and b"hush-77fe" in path.read_bytes()
    ]
    assert [path.name for path in holders] == ["secrets.env"]
    assert holders[0].stat().st_mode & 0o777 == 0o600
    desk.clusterkit("cancel", done["job_id"])


@pytest.mark.parametrize(
    ("cluster", "framework", "how"),
    [
        ("lab", "torchrun", "raise"),
        ("lab", "torchrun", "kill"),
        ("rack", "torchrun", "exit"),
        ("rack", "deepspeed", "raise"),
        ("lab", "deepspeed", "exit"),
        ("rack", "deepspeed", "kill"),
        ("lab", "horovod", "raise"),
        ("rack", "horovod", "kill"),
    ],
)
def test_the_rank_that_fails_first_is_named_with_its_last_words(
    desk: Desk, cluster: str, framework: str, how: str
) -> None:
    in_torch = framework == "horovod" or how == "kill"  # each framework once
    script = desk.write("dies.py", lab_scripts.DIES_IN_TORCH if in_torch else lab_scripts.DIES)
    words = ("--cluster", cluster, "--framework", framework, *THREE)
    submitted = time.time()
    done = desk.clusterkit("submit", "--wait", "--json", *words, script, how)
    over = time.time()
    assert done.returncode == 1
    told = json.loads(done.stdout)
    run = RunFolder(desk.folder / "runs" / Path(told["run_dir"]).name)
    failed = run.rank_failure(0).stat().st_ctime
    assert over - failed < max(30, failed - submitted)  # nothing waits for a time limit
    code, ending, last = {
        "raise": (1, "exited with 1", "ValueError: the loss is NaN"),
        "exit": (7, "exited with 7", "last step"),
        "kill": (137, "was ended by signal 9", "last step"),
    }[how]
    assert (told["state"], told["exit_code"]) == ("failed", code)
    assert told["reason"] == f"n2: rank 3 {ending}"
    failure = told["failure"]
    assert (failure["node"], failure["rank"], failure["exit_code"]) == ("n2", 3, code)
    assert last in failure["tail"][-3:]  # a shell, or Horovod's core, may have had a last word
    assert f"  | {last}" in done.stderr.splitlines()
    assert leftovers(desk, str(script)) == {}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_cancel_leaves_no_process(desk: Desk, framework: str) -> None:
    script = desk.write("sleep-here.py", SLEEP)
    job = desk.submit("--framework", framework, *THREE, script)["job_id"]
    wait_for_output(desk, job, "asleep")
    assert leftovers(desk, script)
    assert desk.clusterkit("cancel", job).returncode == 0
    assert desk.state(job) == "cancelled"
    assert leftovers(desk, script) == {}


def test_more_nodes_than_there_are_is_said_before_sbatch(desk: Desk) -> None:
    script = desk.write("sleep.py", SLEEP)
    for words in (("--nodes", "4"), ("--nodes", "1", "--gpus-per-node", "9")):
        done = desk.clusterkit("submit", "--framework", "torchrun", *words, script)
        assert done.returncode == 2
        assert "gpu" in done.stderr
        assert "hint:" in done.stderr
    assert not (desk.folder / "runs").exists() or not any((desk.folder / "runs").iterdir())


def test_sbatchs_own_words_come_through(desk: Desk) -> None:
    script = desk.write("sleep.py", SLEEP)
    words = ("--framework", "torchrun", "--set", "sbatch.partition=nowhere", script)
    done = desk.clusterkit("submit", *words)
    assert done.returncode == 2
    assert "invalid partition" in done.stderr.lower()
    assert "hint:" in done.stderr


def test_two_submissions_at_the_same_moment(desk: Desk) -> None:
    script = desk.write("tell.py", TELL)
    argv = [sys.executable, "-m", "clusterkit", "submit", "--wait", "--json"]
    argv += ["--framework", "env", "--nodes", "1", script]
    running = [
        desk.lab.popen("head", argv, cwd=desk.folder, env=desk.environment(), stdout=-1)
        for _ in range(2)
    ]
    documents = [json.loads(process.communicate(timeout=200)[0]) for process in running]
    assert [document["state"] for document in documents] == ["succeeded"] * 2
    assert len({document["run_dir"] for document in documents}) == 2
    assert len({document["job_id"] for document in documents}) == 2


def wait_for_output(desk: Desk, job: str, text: str) -> None:
    """Wait until a job has printed `text`, of which one process reads."""
    words = [sys.executable, "-m", "clusterkit", "logs", "--follow", job]
    with desk.lab.popen(
        "head", words, cwd=desk.folder, env=desk.environment(), stderr=subprocess.DEVNULL
    ) as reader:
        assert reader.stdout is not None
        limit = threading.Timer(90, os.killpg, (reader.pid, signal.SIGKILL))
        limit.start()
        came = any(text in line for line in reader.stdout)
        limit.cancel()
        if came:
            os.killpg(reader.pid, signal.SIGKILL)
    assert came, desk.clusterkit("status", job).stdout
