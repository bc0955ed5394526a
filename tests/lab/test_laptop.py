"""A cluster used from a laptop that reaches its login node by ssh and nothing else, as typed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.lab_jobs import await_true
from tests.helpers.laptop import Laptop, laptop_of
from tests.lab.lab import Lab

pytestmark = [pytest.mark.lab]

TRAINS = """
import os, pathlib, sys, time
print("args", sys.argv[1:], flush=True)
print("code", sorted(map(str, filter(pathlib.Path.is_file, pathlib.Path("..").rglob("*")))))
pathlib.Path("model").mkdir()
pathlib.Path("model/1 of 2.pt").write_text("weights")
pathlib.Path(os.environ["CK_RESULTS"], "metrics").write_text("loss 1.5")
for step in range(int(os.environ.get("STEPS", "1"))):
    print("step", step, flush=True)
    time.sleep(0.2)
"""
ODD = ("it's", "$HOME `id`", "two\nlines", "", "--cluster", "*", "\u00fc\\")


@pytest.fixture
def laptop(lab: Lab, tmp_path: Path) -> Iterator[Laptop]:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    folder = tmp_path / "my code"
    folder.mkdir()
    (folder / "train me.py").write_text(TRAINS)
    (tmp_path / ".gitignore").write_text("data\n")
    (tmp_path / "data").write_text("too much to send")
    commit = ("-c", "user.name=me", "-c", "user.email=me", "commit", "--quiet", "-m", "one")
    for words in (("add", ".gitignore"), commit):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    (tmp_path / ".gitignore").write_text("data\ntoo late\n")
    with laptop_of(lab, folder, f"laptop-{os.getpid()}") as given:
        yield given


@pytest.mark.smoke
def test_a_job_goes_there_and_its_results_come_back(laptop: Laptop) -> None:
    given = ("--framework", "env", "train me.py", *ODD)
    done = laptop.clusterkit("submit", "--json", "--wait", *given)
    document = json.loads(done.stdout)
    assert (done.returncode, document["state"]) == (0, "succeeded"), done.stderr
    assert document["run_dir"].startswith(str(laptop.lab.shared))
    told = json.loads(Path(document["run_dir"], "provenance.json").read_text())
    assert told["commit"] == laptop.commit()
    assert "+too late" in told["diff"]
    code = Path(document["run_dir"], "code")
    assert (code / ".gitignore").read_text() == "data\ntoo late\n"
    (sent,) = (Path(document["run_dir"]).parent / ".laptop").iterdir()
    assert [path.name for path in sent.iterdir() if path.is_dir()] == ["tree"]
    job = document["job_id"]
    logs = laptop.clusterkit("logs", job).stdout.splitlines()
    assert logs[0] == f"args {[*ODD]}"
    assert (
        logs[1] == "code ['../.gitignore', '../my code/clusterkit.yaml', '../my code/train me.py']"
    )

    # What was changed since runs in a folder of its own.
    (laptop.folder / "train me.py").unlink()
    (laptop.folder / "next.py").write_text("import os; print(sorted(os.listdir()))")
    following = laptop.clusterkit("submit", "--follow", "--framework", "env", "next.py")
    assert following.stdout == "['clusterkit.yaml', 'next.py']\n", following.stderr
    again = laptop.clusterkit("rerun", "next", "--wait")
    assert "the files that were sent then are run, " in again.stderr, again.stderr
    which = laptop.clusterkit("fetch", "next", "out", "--output", "o2")
    assert re.search(r"clusterkit fetch --output o2 \S+ out\n", which.stderr), which.stderr

    fetched = laptop.clusterkit("fetch", job, "model", "--output", "there")
    assert fetched.returncode == 0, fetched.stderr
    assert (laptop.folder / "there/model/1 of 2.pt").read_text() == "weights"
    counts = [json.loads(laptop.clusterkit("fetch", job, "--json").stdout)["files"] for _ in "12"]
    assert counts == [2, 0]
    (run,) = laptop.folder.glob("train-me-*")
    assert (run / "results/metrics").read_text() == "loss 1.5"
    missing = laptop.clusterkit("fetch", job, "none")
    assert "there is no " in missing.stderr
    assert missing.returncode == 2


def test_of_a_job_without_files_nothing_is_brought_and_no_folder_made(laptop: Laptop) -> None:
    given = ("--framework", "env", "train me.py")
    later = ("--set", "sbatch.begin=now+1hour", "--name", "later", *given)
    pending = laptop.clusterkit("submit", *later)
    assert pending.returncode == 0, pending.stderr
    nothing = laptop.clusterkit("fetch", "later")
    assert "no files there yet: head:" in nothing.stdout, nothing.stdout + nothing.stderr
    assert not [*laptop.folder.glob("later-*")]
    assert laptop.clusterkit("cancel", "later").returncode == 0


def test_a_broken_connection_loses_nothing(laptop: Laptop) -> None:
    """The job can be looked at by a jump host as well, and others measure beside it."""
    words = ("--env", "STEPS=1200", "--framework", "env", "train me.py")
    with laptop.popen("submit", "--follow", *words) as follows:
        assert follows.stdout is not None
        assert follows.stderr is not None
        while "step 2" not in follows.stdout.readline():
            pass
        laptop.cut()
        assert follows.wait(80) == 2
        assert "the connection broke; jobs there go on" in follows.stderr.read()
    # The other end has noticed as well.
    await_true(lambda: not laptop.lab.processes("head", "submit --follow --env STEPS"))
    with laptop.popen("logs", "--follow", "latest") as again:
        assert again.stdout is not None
        while "step 9" not in again.stdout.readline():
            pass
        again.kill()  # and so has nobody a process left who is killed
    await_true(lambda: not laptop.lab.processes("head", "logs --follow latest"))
    inside = laptop.clusterkit(
        "exec", "latest", "--", "sh", "-c", 'cat; exit "$1"', "x", "7", given="a"
    )
    assert (inside.stdout, inside.returncode) == ("a", 7), inside.stderr
    with laptop.behind("n3") as behind:
        told = behind.clusterkit("status", "latest", "--json")
    status = json.loads(told.stdout)
    assert status["state"] == "running", told.stderr
    job = status["job_id"]
    _top_and_bench(laptop, job)
    assert laptop.clusterkit("cancel", job).returncode == 0
    waited = laptop.clusterkit("wait", job)
    assert (waited.returncode, "cancelled" in waited.stderr + waited.stdout) == (1, True)
    assert "somebody cancelled the job" in laptop.clusterkit("diagnose", job).stdout


def _top_and_bench(laptop: Laptop, job: str) -> None:
    """Look at the job that runs, and measure beside it."""
    shown = laptop.clusterkit("top", job, "--once", "--json")
    (node,) = json.loads(shown.stdout)["nodes"]
    assert (shown.returncode, node["node"], node["problem"]) == (0, "n1", None), shown.stdout
    assert 0 in [process["rank"] for process in node["processes"]], shown.stdout
    words = ("--nodes", "2", "--gpus-per-node", "1", "--backend", "gloo", "--sizes", "1M:1M")
    short = ("--iters", "2", "--preflight", "off")
    measured = laptop.clusterkit("bench", "collectives", "--json", *words, *short)
    found = json.loads(measured.stdout)
    assert (measured.returncode, found["correct"]) == (0, True), measured.stderr


def test_init_and_checks_ask_the_cluster(laptop: Laptop) -> None:
    written = laptop.clusterkit("init", "--login", "head", "--output", "found.yaml", "--yes")
    assert written.returncode == 0, written.stderr
    assert "    login: head" in (laptop.folder / "found.yaml").read_text()
    # That names an environment which nobody has made yet.
    there = laptop.clusterkit("--config-file", "found.yaml", "status")
    assert there.returncode == 2
    assert "clusterkit nodes prepare --cluster lab" in there.stderr
    theirs = laptop.folder / "venv"
    (theirs / "bin").mkdir(parents=True)
    python = theirs / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    text = (laptop.folder / "found.yaml").read_text()
    named = text.replace("    login: head", f"    venv: {theirs}\n    login: head")
    (laptop.folder / "found.yaml").write_text(named)
    prepared = laptop.clusterkit("--config-file", "found.yaml", "nodes", "prepare")
    assert prepared.returncode == 0, prepared.stdout
    assert "an environment of your own, used as it is" in prepared.stdout, prepared.stderr
    nothing = laptop.clusterkit("--config-file", "found.yaml", "fetch", "latest")
    assert "there is no clusterkit in" in nothing.stderr
    assert "head: head: " not in nothing.stderr

    checked = laptop.clusterkit("preflight", "--nodes", "2", "--html", "page.html", "--json")
    assert json.loads(checked.stdout)["usable"] == ["n1", "n2"], checked.stderr
    assert (laptop.folder / "page.html").stat().st_size > 9000
    told = laptop.clusterkit("doctor")
    for item in ("ssh reaches it, for cluster", "head: slurm-wlm ", "head: Slurmctld(primary)"):
        assert item in told.stdout, told.stdout + told.stderr
    nowhere = laptop.clusterkit("init", "--login", "nowhere", "--output", "other.yaml")
    assert "try it by hand: ssh -- nowhere true" in nowhere.stderr
