"""`clusterkit hostfile` as its users meet it: answers, messages, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.command_line import outcome
from tests.helpers.paths import ROOT

CONFIG = """
clusters:
  rack: {kind: ssh, hosts: "n[1-2]", gpus_per_node: 8, user: train}
  mixed: {kind: ssh, hostfile: mixed}
  a100: {kind: slurm, partition: gpu, gpus_per_node: 4}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the verb in an empty folder, with no Slurm and no configuration around it."""
    for name in os.environ:
        if name.startswith(("SLURM_", "CLUSTERKIT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*args: str, **environment: str) -> Ran:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code, out, err = outcome("hostfile", *args)
        return Ran(code=code, out=out, err=err)

    return run


def test_a_file_is_converted(run: Run) -> None:
    Path("rack").write_text("# ours\nn2 slots=8\nn1 slots=4\n")
    assert run("rack", "--format", "hydra") == Ran(code=0, out="n2:8\nn1:4\n", err="")


def test_a_misread_file_is_a_warning_on_stderr(run: Run) -> None:
    Path("rack").write_text("n2 slots=8,n1 slots=4\n")
    ran = run("rack", "--format", "horovod")
    assert (ran.code, ran.out) == (0, "n2 slots=8\nn1 slots=4\n")
    assert ran.err.startswith("warning: DeepSpeed reads only the first host of a line")
    assert "  --> rack:1:1\n" in ran.err


def test_json_has_all_of_it_in_one_document(run: Run) -> None:
    Path("rack").write_text("n1 slots=4x\n")
    ran = run("rack", "--format", "openmpi", "--json")
    document = json.loads(ran.out)
    assert document["schema"] == 1
    assert document["format"] == "openmpi"
    assert document["text"] == "n1 slots=4\n"
    assert [(host["name"], host["slots"]) for host in document["hosts"]] == [("n1", 4)]
    assert document["warnings"][0]["position"]["column"] == 11


def test_every_error_of_a_file_is_shown(run: Run) -> None:
    Path("rack").write_text("n1 slots=0\nn2 Slots=4\nn2 slots=1\n")
    ran = run("rack", "--format", "hydra")
    assert (ran.code, ran.out, ran.err.count("error: ")) == (2, "", 3)
    assert "hint: did you mean 'slots'?" in ran.err


def test_what_the_format_cannot_say_is_refused(run: Run) -> None:
    Path("rack").write_text("n1 slots=4 max_slots=8\n")
    ran = run("rack", "--format", "deepspeed")
    assert (ran.code, ran.out) == (2, "")
    assert "DeepSpeed cannot say max_slots: n1" in ran.err


def test_a_hostlist(run: Run) -> None:
    listed = ("--hostlist", "n[9-10],n2")
    assert run(*listed, "--slots", "2").out == "n9 slots=2\nn10 slots=2\nn2 slots=2\n"
    assert run(*listed, "--format", "names").out == "n9\nn10\nn2\n"
    assert run(*listed, "--slots", "8", "--format", "hostlist").out == "n[9-10,2]\n"
    assert "needs slots, and they are unknown: n[2,9-10]" in run(*listed).err


@pytest.mark.parametrize("text", ["n[1-", "n1,n1", "n1 slots=4", "n1;true", ""])
def test_a_bad_hostlist(run: Run, text: str) -> None:
    ran = run("--hostlist", text, "--slots", "8")
    assert (ran.code, ran.out) == (2, "")
    assert "--> --hostlist" in ran.err


def test_filters(run: Run) -> None:
    listed = ("--hostlist", "n[1-3]", "--slots", "4")
    assert run(*listed, "--exclude", "n2@n3:2,3").out == "n1 slots=4\nn3 slots=2\n"
    ran = run(*listed, "--include", "n3:1@n1")
    assert (ran.code, ran.out) == (0, "n1 slots=4\nn3 slots=1\n")
    assert "set CUDA_VISIBLE_DEVICES=1 on n3" in ran.err
    assert run(*listed, "--include", "n4").code == 2
    assert run(*listed, "--include", "n1", "--exclude", "n2").code == 2
    assert run(*listed, "--exclude", "n1@n2@n3").code == 2


def test_an_allocation(run: Run) -> None:
    allocation = {"SLURM_JOB_NODELIST": "n[7,66,8]", "SLURM_TASKS_PER_NODE": "2(x2),1"}
    assert run("--format", "hydra", **allocation).out == "n7:2\nn66:2\nn8:1\n"
    assert run("--format", "hostlist").out == "n[7,66,8]\n"
    assert run("--format", "hydra", "--slots", "3").out == "n7:3\nn66:3\nn8:3\n"
    assert run("--format", "hydra", SLURM_GPUS_ON_NODE="8").out == "n7:8\nn66:8\nn8:8\n"


def test_a_cluster(run: Run) -> None:
    Path("clusterkit.yaml").write_text(CONFIG)
    Path("mixed").write_text("m1 slots=8\nm2 slots=4\n")
    assert run("--cluster", "rack", "--format", "hydra").out == "n1:8 user=train\nn2:8 user=train\n"
    ran = run("--cluster", "rack", "--format", "deepspeed")
    assert (ran.code, ran.out) == (0, "n1 slots=8\nn2 slots=8\n")
    assert "cannot say the user train of cluster 'rack'" in ran.err
    assert run("--cluster", "rack", "--format", "names") == Ran(code=0, out="n1\nn2\n", err="")
    assert run("--cluster", "mixed", "--format", "hostlist").out == "m[1-2]\n"
    assert run("--cluster", "mixed", "--format", "horovod").out == "m1 slots=8\nm2 slots=4\n"
    assert run("--cluster", "local", "--slots", "2").out == "localhost slots=2\n"
    ran = run("--cluster", "a100")
    assert (ran.code, "only inside the job" in ran.err) == (2, True)
    assert run("--cluster", "a100", SLURM_JOB_NODELIST="n3").out == "n3 slots=4\n"
    assert run("--cluster", "a10").code == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "nothing to make a hostfile of"),
        (("missing",), "cannot read missing"),
        (("x", "--hostlist", "n1"), "FILE and --hostlist exclude each other"),
        (("--hostlist", "n1", "--format", "deepsped"), "did you mean 'deepspeed'?"),
        (("--hostlist", "n1", "--slots", "0"), "--slots"),
    ],
)
def test_usage_errors(run: Run, args: tuple[str, ...], message: str) -> None:
    ran = run(*args)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_stdin() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clusterkit", "hostfile", "-", "--format", "names"],
        input=b"n2\r\nn1\r\n",
        capture_output=True,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"n2\nn1\n")


def test_of_a_file_that_is_no_hostfile_not_every_line_is_an_error(run: Run) -> None:
    Path("train.py").write_text("import os = 1\n" * 40)
    done = run("train.py")
    assert done.code == 2
    assert done.err.count("error: ") == 12
    assert done.err.endswith("and 67 more errors\n")


def test_a_hostlist_in_place_of_a_file(run: Run) -> None:
    done = run("n[1-4]")
    assert done.code == 2
    assert "hint: a hostlist: --hostlist 'n[1-4]'" in done.err
