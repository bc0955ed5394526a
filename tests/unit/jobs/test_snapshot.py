"""`submit --snapshot` and `rerun` from it, typed on this machine with a real repository."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterkit.cli.jobs import submit_array
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.jobs.submit import provenance
from clusterkit.jobs.submit.hand_over import hand_over
from tests.helpers.command_line import typed_in

CONFIG = """\
clusters: {{here: {{kind: local, run_dir: runs, preflight: "off", python: {python}}}}}
"""
TRAIN = """\
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
import lib
print(lib.WORD, pathlib.Path("out/data.txt").read_text(), pathlib.Path("in.txt").read_text())
"""
FILES = ["lib.py", "train.py"]
SUBMIT = ("submit", "--json", "-c", "here", "--framework", "env")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    work = tree / "work"
    work.mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data.txt").write_text("data")
    (tree / "clusterkit.yaml").write_text(CONFIG.format(python=sys.executable))
    (tree / ".gitignore").write_text("*.ckpt\n")
    (work / "train.py").write_text(TRAIN)
    (work / "lib.py").write_text("WORD = 'committed'\n")
    (work / "in.txt").symlink_to(work / "same.txt")
    (work / "same.txt").write_text("then")
    (work / "out").symlink_to("../../data")
    (work / "a\nname").write_text("")
    for words in (("init", "-q"), ("add", "-A")):
        subprocess.run(["git", *words], cwd=tree, check=True)
    (work / "lib.py").write_text("WORD = 'not-committed'\n")
    (work / "new.py").write_text("")
    (work / "large.ckpt").write_bytes(bytes(2 << 20))
    return tree


def submitted(work: Path, *words: str) -> RunFolder:
    done = typed_in(work, *SUBMIT, *words)
    assert done.returncode == 0, done.stderr
    return RunFolder(Path(json.loads(done.stdout)["run_dir"]))


def test_what_is_edited_afterwards_changes_no_job_and_a_lost_script_runs_again(
    tree: Path, tmp_path: Path
) -> None:
    work, go = tree / "work", tmp_path / "go"
    run = submitted(work, "--snapshot", "train.py", str(go))
    copy = run.path / "code" / "work"
    assert (copy / "a\nname").exists()
    assert (copy / "new.py").exists()
    assert not (copy / "large.ckpt").exists()
    assert not (run.path / "code" / "runs").exists()
    for name, text in (("lib.py", "WORD = 'edited'\n"), ("same.txt", "now")):
        with (work / name).open("r+") as file:  # in place, as some editors write
            file.write(text)
            file.truncate()
    go.touch()
    waited = typed_in(work, "wait", run.key)
    assert waited.returncode == 0, waited.stderr
    assert typed_in(work, "logs", run.key).stdout == "not-committed data then\n"

    (work / "train.py").unlink()
    again = typed_in(work, "rerun", run.key, "--wait")
    assert again.returncode == 0, again.stderr
    assert (
        f"train.py is gone from {work}: its copy in the run folder is run, {copy}" in again.stderr
    )
    assert typed_in(work, "logs", "latest").stdout == "not-committed data then\n"


def test_each_job_of_an_array_gets_the_same_files(tree: Path) -> None:
    work = tree / "work"
    sweep = ("--array", "n=1,2", "--snapshot", "train.py", "/dev/null", "{n}")
    done = typed_in(work, *SUBMIT, *sweep)
    runs = [RunFolder(Path(job["run_dir"])) for job in json.loads(done.stdout)["jobs"]]
    assert typed_in(work, "wait", "latest").returncode == 0
    for run in runs:
        assert run.log(0).read_text() == "not-committed data then\n"


def test_an_array_may_start_in_a_folder_of_which_nothing_is_copied(tree: Path) -> None:
    (tree / "empty").mkdir()
    words = ("--array", "n=1,2,3", "--snapshot", "../work/new.py", "{n}")
    done = typed_in(tree / "empty", *SUBMIT, "--wait", *words)
    assert done.returncode == 0, done.stderr


def sent(tree: Path, name: str, **told: object) -> Path:
    """Have what a laptop would have sent."""
    copy = tree / "runs" / ".laptop" / "project-0123456789ab" / name
    (copy / "work").mkdir(parents=True)
    (copy / "work" / "train.py").write_text("import lib; print(lib.WORD)")
    (copy / "work" / "lib.py").write_text("WORD = 'sent'")
    document = {"commit": "c" * 40, "diff": "+too late\n", **told}
    copy.with_name(f"{name}.json").write_text(json.dumps(document))
    return copy


def test_what_a_laptop_has_sent_becomes_the_snapshot_of_its_job(tree: Path) -> None:
    copy = sent(tree, "20261129-012500-aaaaaa", of_one_job=True)
    done = typed_in(copy / "work", *SUBMIT, "--wait", "--array", "seed=1,2", "train.py", "{seed}")
    assert done.returncode == 0, done.stderr
    assert [*copy.parent.iterdir()] == []
    for job in json.loads(done.stdout)["jobs"]:
        run = RunFolder(Path(job["run_dir"]))
        code = run.path / "code" / "work"
        assert sorted(path.name for path in code.iterdir() if path.is_file()) == FILES
        assert run.log(0).read_text() == "sent\n"
        told = json.loads((run.path / "provenance.json").read_text())
        assert (told["commit"], told["diff"]) == ("c" * 40, "+too late\n")
    # The folder that it was sent to is gone: it runs again as it was.
    again = typed_in(tree, "rerun", json.loads(done.stdout)["array"], "--json", "--wait")
    assert again.returncode == 0, again.stderr
    anew = Path(json.loads(again.stdout)["jobs"][1]["run_dir"])
    assert json.loads((anew / "provenance.json").read_text())["commit"] == "c" * 40


@pytest.mark.parametrize("of_laptop", [True, False])
def test_no_job_of_an_array_gets_what_another_has_written(
    tree: Path, monkeypatch: pytest.MonkeyPatch, *, of_laptop: bool
) -> None:
    copy = sent(tree, "20261129-012500-cccccc", of_one_job=True)
    if not of_laptop:
        copy = copy.rename(tree.parent / "copy")
        (copy / "clusterkit.yaml").write_bytes((tree / "clusterkit.yaml").read_bytes())
        subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
    flags = () if of_laptop else ("--snapshot",)

    def to_a_quick_node(*words: Any, **more: Any) -> tuple[RunFolder, Submission]:
        run, submission = hand_over(*words, **more)
        work = run.path / "code" / "work"
        assert sorted(path.name for path in work.iterdir() if path.is_file()) == FILES
        assert (work / "lib.py").read_text() == "WORD = 'sent'"
        (work / "lib.py").write_text("WORD = 'changed'")
        (work / "model.ckpt").write_text("")
        if not of_laptop:  # nor what is edited meanwhile
            (copy / "work" / "lib.py").write_text("WORD = 'edited'")
        return run, submission

    monkeypatch.setattr(submit_array, "hand_over", to_a_quick_node)
    sweep = (*flags, "--array", "seed=1,2,3", "train.py", "{seed}")
    done = typed_in(copy / "work", *SUBMIT, *sweep)
    assert done.returncode == 0, done.stderr
    jobs = json.loads(done.stdout)["jobs"]
    assert len(jobs) == 3
    assert not of_laptop or [*copy.parent.iterdir()] == []
    assert not [*Path(jobs[0]["run_dir"]).glob("code-*")]
    assert typed_in(copy if copy.exists() else tree, "wait", "latest").returncode == 0


def test_a_client_killed_within_an_array_leaves_no_code_for_others(tree: Path) -> None:
    """In another process, as a client has one; it is killed once the first job is known to be over.

    So its state is kept already, and read from there afterwards.
    """
    work = tree / "work"
    killed = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from clusterkit.executors.run.runfolder import RunFolder\n"
        "from clusterkit.cli.frame.main import main\n"
        "from clusterkit.cli.jobs import submit_array\n"
        "from clusterkit.cli.jobs.wait import wait_for_runs\n"
        "def killed(passed, *, snapshot):\n"
        "    [run] = [folder.parent for folder in Path('../runs').glob('*/code-for-others')]\n"
        "    wait_for_runs([RunFolder(run.resolve())])\n"
        "    assert (run / 'code-for-others').exists(), 'that client lives'\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "submit_array.replace = killed\n"
        "main()"
    )
    words = (*SUBMIT, "--snapshot", "--array", "n=1,2", "train.py", "/dev/null", "{n}")
    done = subprocess.run([sys.executable, "-c", killed, *words], cwd=work, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = (tree / "runs").glob("*/code-for-others")
    assert typed_in(work, "wait", "latest").returncode == 0
    assert not left.exists()


@pytest.fixture
def disk(tree: Path) -> Iterator[Path]:
    """A folder on another file system than the tree."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        if Path(name).stat().st_dev == tree.stat().st_dev:
            pytest.skip("the tests' folders are in memory as well")
        yield Path(name)


def test_what_was_sent_to_another_file_system_is_copied(tree: Path, disk: Path) -> None:
    copy = sent(disk, "20261129-012500-dddddd", of_one_job=True)
    (copy / "work" / "same.py").symlink_to("lib.py")
    config = {"CLUSTERKIT_CONFIG_FILE": str(tree / "clusterkit.yaml")}
    done = typed_in(copy / "work", *SUBMIT, "--wait", "train.py", **config)
    assert done.returncode == 0, done.stderr
    run = RunFolder(Path(json.loads(done.stdout)["run_dir"]))
    assert run.log(0).read_text() == "sent\n"
    assert (run.path / "code" / "work" / "same.py").readlink() == Path("lib.py")
    assert json.loads(run.plan.read_text())["workdir"] == str(run.path / "code" / "work")


def test_what_goes_to_the_nodes_by_sync_is_not_moved_away(tree: Path) -> None:
    copy = sent(tree, "20261129-012500-eeeeee", of_one_job=True)
    unreachable = tree / "bin" / "ssh"
    unreachable.parent.mkdir()
    unreachable.write_text("#!/bin/sh\nexit 255\n")
    unreachable.chmod(0o700)
    away = {"kind": "ssh", "hosts": ["127.0.0.1"], "shared_filesystem": False}
    config = {"clusters": {"here": {**away, "run_dir": str(tree / "runs"), "preflight": "off"}}}
    (tree / "clusterkit.yaml").write_text(json.dumps(config))
    job = {"script": "train.py", "framework": "env", "nodes": 1, "gpus_per_node": 1, "sync": "."}
    (copy / "work" / "job.yaml").write_text(json.dumps(job))
    path = f"{unreachable.parent}:{os.environ['PATH']}"
    words = ("submit", "-c", "here", "--job", "job.yaml")
    done = typed_in(copy / "work", *words, PATH=path)
    assert done.returncode != 0
    assert "127.0.0.1" in done.stderr
    assert "there is no folder" not in done.stderr
    assert (copy / "work" / "train.py").exists()
    assert provenance.beside(copy).exists()


@pytest.mark.parametrize("of_laptop", [True, False])
def test_a_script_by_its_absolute_path_is_that_of_the_copy(tree: Path, *, of_laptop: bool) -> None:
    work = tree / "work"
    if of_laptop:
        work = sent(tree, "20261129-012500-ffffff", of_one_job=True) / "work"
    (work / "train.py").write_text("print(__file__)")
    flags = ("--wait", "--array", "seed=1,2", *(() if of_laptop else ("--snapshot",)))
    done = typed_in(work, *SUBMIT, *flags, str(work / "train.py"), "{seed}")
    assert done.returncode == 0, done.stderr
    for job in json.loads(done.stdout)["jobs"]:
        run = RunFolder(Path(job["run_dir"]))
        assert json.loads(run.plan.read_text())["script"] == "train.py"
        assert run.log(0).read_text() == f"{run.path}/code/work/train.py\n"
    # Without the file that was named, the job's own copy of it runs, or a copy of that.
    (work / "train.py").unlink(missing_ok=True)
    again = typed_in(tree, "rerun", json.loads(done.stdout)["array"], "--json", "--wait")
    assert again.returncode == 0, again.stderr
    anew = RunFolder(Path(json.loads(again.stdout)["jobs"][1]["run_dir"]))
    assert json.loads(anew.plan.read_text())["script"] == "train.py"


def test_an_absolute_script_of_a_job_file_is_found_in_the_copy(tree: Path) -> None:
    work = tree / "work"
    script = work / "train.py"
    script.write_text("import sys; print(*sys.argv[1:])")
    (work / "job.yaml").write_text(f"script: {script}\nargs: [a]\n")
    run = submitted(work, "--wait", "--snapshot", "--job", "job.yaml")
    assert run.log(0).read_text() == "a\n"
    script.unlink()
    for _ in range(2):  # of the job that was submitted again as well
        again = typed_in(work, "rerun", "latest", "--json", "--wait", "--", "b")
        assert again.returncode == 0, again.stderr
    anew = RunFolder(Path(json.loads(again.stdout)["run_dir"]))
    assert anew.log(0).read_text() == "a b b\n"


def test_a_script_elsewhere_keeps_its_path_in_what_a_laptop_has_sent(tree: Path) -> None:
    copy = sent(tree, "20261129-012500-abcdef", of_one_job=True)
    script = tree.parent / "data" / "train.py"
    script.write_text("print(__file__)")
    run = submitted(copy / "work", "--wait", str(script))
    assert run.log(0).read_text() == f"{script}\n"


def test_a_file_called_as_ours_beside_code_is_not_taken_for_ours(tree: Path) -> None:
    code = tree / "code"
    code.mkdir()
    (tree / "provenance.json").write_text('{"commit": "of SLSA"}')
    who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    subprocess.run(["git", *who, "commit", "-qm", "first"], cwd=tree, check=True)
    (code / "train.py").write_text("")
    run = submitted(code, "--wait", "train.py")
    told = json.loads((run.path / "provenance.json").read_text())
    assert len(told["commit"]) == 40
    assert "not-committed" in told["diff"]


def test_a_copy_of_the_version_before_stays_where_it_is(tree: Path) -> None:
    copy = sent(tree, "20261128-012500-bbbbbb")
    run = submitted(copy / "work", "--wait", "train.py")
    assert json.loads(run.plan.read_text())["workdir"] == str(copy / "work")
    told = json.loads((run.path / "provenance.json").read_text())
    assert told["commit"] == "c" * 40


def test_what_no_snapshot_can_be_made_of_is_refused_and_leaves_nothing(tree: Path) -> None:
    work = tree / "work"
    (work / "large.txt").write_bytes(bytes(2 << 20))
    for words, said in (
        (("--sync-limit", "1", "train.py"), "2.0 MiB  work/large.txt"),
        (("../../data/data.txt",), "data.txt is not in"),
    ):
        done = typed_in(work, *SUBMIT, "--snapshot", *words)
        assert done.returncode == 2
        assert said in done.stderr
    assert not list(tree.glob("runs/*"))
