"""`import clusterkit`: each function gives what its verb prints with --json."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import clusterkit
from clusterkit.cli.estimate.verb import estimate
from clusterkit.cli.frame.main import app
from clusterkit.estimate.query.options import EstimateOptions
from clusterkit.jobs.submit.preflight import PreflightFailedError
from clusterkit.launch.jobfile import JobFile
from clusterkit.launch.options import JobOptions
from clusterkit.preflight.request import PreflightOptions

HELLO = """\
import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
sys.exit(3 if "--fail" in sys.argv else 0)
"""
CONFIG = """\
clusters:
  local: {run_dir: runs}
  a100: {kind: slurm, partition: gpu, gpus_per_node: 8, run_dir: runs}
  rack: {kind: ssh, hosts: "n[1-3]", gpus_per_node: 2}
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusterkit.yaml").write_text(CONFIG)
    (tmp_path / "train.py").write_text(HELLO)
    return tmp_path


def verb(*words: str) -> dict[str, Any]:
    answer = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert isinstance(answer, dict)
    return answer


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Tell whether two documents are one, as text: also the order of keys."""
    return json.dumps(ours) == json.dumps(theirs)


def test_import_loads_nothing_before_it_is_asked_for() -> None:
    code = (
        "import sys, clusterkit\n"
        "assert dir(clusterkit) == sorted([*clusterkit.__all__, '__version__'])\n"
        "ours = sorted(m for m in sys.modules if m.startswith('clusterkit'))\n"
        "print(*ours, 'typer' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    light = "clusterkit clusterkit.core clusterkit.core.moved clusterkit.core.version"
    assert done.stdout.strip() == f"{light} False"
    with pytest.raises(AttributeError, match="no attribute 'sumbit'"):
        clusterkit.sumbit  # noqa: B018


@pytest.mark.parametrize("name", clusterkit.__all__)
def test_all_that_is_offered_is_there(name: str) -> None:
    assert getattr(clusterkit, name).__doc__


@pytest.mark.parametrize("name", clusterkit.__all__)
def test_help_describes_every_argument(name: str) -> None:
    offered = getattr(clusterkit, name)
    whole = {} if not inspect.isclass(offered) else vars(offered)
    methods = [m for n, m in whole.items() if inspect.isfunction(m) and not n.startswith("_")]
    for each in methods or ([] if inspect.isclass(offered) else [offered]):
        text = inspect.getdoc(each) or ""
        described = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
        for argument in inspect.signature(each).parameters:
            assert argument == "self" or re.search(rf"(?m)^    {argument}: \S", described), text
        assert not re.search("repeatable|[{}]", described)
        assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("name", ["estimate", "preflight", "render", "submit"])
def test_a_verb_is_a_function_whatever_was_loaded(name: str) -> None:
    """Two of them have the names of packages, which are bound when anything imports them."""
    code = (
        "import inspect, sys, clusterkit\n"
        f"first = inspect.signature(clusterkit.{name})\n"
        f"assert callable(clusterkit.{name})\n"
        "import clusterkit.estimate.setup, clusterkit.preflight.gate\n"
        "from clusterkit.launch.render import render\n"
        f"assert inspect.signature(clusterkit.{name}) == first\n"
        f"clusterkit.{name}(no_such_word=1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"TypeError: {name}(): got an unexpected keyword argument" in done.stderr


def test_arguments_are_the_flags() -> None:
    """What the command line can say of a job, Python can, but for arrays."""
    command: Any = typer.main.get_command(app)
    flags = {param.name for param in command.get_command(None, "render").params}
    own = {"output", "only", "service", "stdout", "diff", "json"}
    jobs = set(inspect.signature(JobOptions).parameters)
    assert jobs == flags - own - {"array", "at_once", "elements"}
    submit = set(inspect.signature(clusterkit.submit).parameters)
    assert submit - jobs == {"preflight", "exclude_unfit", "snapshot", "force", "after"}
    keys = {"array", "at_once", "elements", "preflight", "after"}
    assert set(JobFile.model_fields) == jobs - {"job"} | keys
    files = {"folder", "plot", "launch", "calibrate", "score", "json"}
    assert {*inspect.signature(EstimateOptions).parameters, *files} == set(
        inspect.signature(estimate).parameters
    )


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (("--cluster", "a100", "--nodes", "2", "--time", "1:30:00", "--env", "A=1"),
         {"cluster": "a100", "nodes": 2, "time": "1:30:00", "env": {"A": 1}}),
        (("--cluster", "rack", "--nodes", "2", "--gpus-per-node", "2,1", "--exclude", "n2",
          "--set", "sbatch.nice=1"),
         {"cluster": "rack", "nodes": "2", "gpus_per_node": [2, 1], "exclude": "n2",
          "set": {"sbatch.nice": 1}}),
        (("--only", "node"), {"only": ["node"]}),
    ],
)  # fmt: skip
def test_render(desk: Path, words: tuple[str, ...], given: dict[str, Any]) -> None:
    script = ("--framework", "env", "train.py", "--lr", "3e-4")
    found = clusterkit.render("train.py", args=["--lr", "3e-4"], framework="env", **given)
    runner = CliRunner().invoke(app, ["render", "--json", *words, *script])
    assert same(found.document, json.loads(runner.stdout))
    paths = found.write(desk / "out")
    assert [path.read_text() for path in paths] == [file.text for file in found.files]
    assert found["node.sh"] == (desk / "out" / "node.sh").read_text()


def test_a_job_file_and_arguments_that_beat_it(desk: Path) -> None:
    (desk / "job.yaml").write_text("script: train.py\nframework: torchrun\nnodes: 3\n")
    found = clusterkit.render(job="job.yaml", framework="env", env={"WORDS": "a b"})
    assert (found.plan.framework, found.plan.nodes) == ("env", 3)
    assert found.plan.env["WORDS"] == "a b"
    (desk / "job.yaml").write_text("script: train.py\nframework: env\narray: x=1,2\n")
    with pytest.raises(clusterkit.UserError, match="is an array"):
        clusterkit.render(job="job.yaml")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"framework": "torchrnu"}, ["unknown framework 'torchrnu'", "argument framework",
                                     "did you mean 'torchrun'?"]),
        ({"framework": "env", "nodes": "two"}, ["'two' is not a number of nodes", "MIN:MAX"]),
        ({"framework": "env", "requeue": -1, "time": "soon"}, ["at least 0", "time"]),
        ({"framework": "env", "script": "trian.py"}, ["trian.py does not exist",
                                                      "did you mean train.py?"]),
        ({"framework": "env", "preflight": "some"}, ["--preflight some: unknown"]),
        ({"module": True}, ["-m train, or leave -m out: train.py"]),
    ],
)  # fmt: skip
def test_mistakes_are_user_errors(desk: Path, given: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(clusterkit.UserError) as error:
        clusterkit.submit(**{"script": "train.py", "cluster": "local", **given})
    for words in said:
        assert words in str(error.value)
    assert not list(desk.glob("runs/*"))


def test_submit_and_what_becomes_of_it(desk: Path) -> None:
    job = clusterkit.submit("train.py", args=["--lr", 0.1], framework="env", nodes=2)
    ended = job.wait()
    assert (ended["state"], ended["exit_code"], job.state) == ("succeeded", 0, "succeeded")
    assert "[node-1] rank 1 of 2 ['--lr', '0.1']\n" in job.logs()
    assert job.logs(node=1, tail=1) == "rank 1 of 2 ['--lr', '0.1']\n"
    assert "".join(job.follow(node=0)) == job.logs(node=0)
    assert same(ended, verb("wait", job.job_id))
    assert same(job.status(), verb("status", job.job_id))
    assert list(job.document) == list(verb("status", job.job_id))[: len(job.document)]
    assert clusterkit.find_job("latest") == job
    assert "succeeded" in repr(job)
    assert f"<td style='text-align:left'>{job.job_id}</td>" in job._repr_html_()
    assert job.run_dir.parent == desk / "runs"
    assert same(job.cancel(), {"schema": 1, **verb("cancel", job.job_id)["jobs"][0]})


def test_a_job_that_fails_raises_nothing_and_says_why(desk: Path) -> None:
    job = clusterkit.submit("train.py", args=["--fail"], framework="env", nodes=1)
    ended = job.wait()
    assert (ended["state"], ended["exit_code"]) == ("failed", 3)
    assert ended["failure"]["rank"] == 0
    assert "exited with 3" in job._repr_html_()
    why = clusterkit.diagnose(job)
    assert same(why.document, verb("diagnose", job.job_id))
    assert why.cause is not None
    assert why.cause["title"] in repr(why)


def test_the_document_of_a_submission(desk: Path) -> None:
    """The keys of `submit --json`, before anything has ended."""
    (desk / "train.py").write_text("import time\ntime.sleep(300)\n")
    job = clusterkit.submit("train.py", framework="env", name="long")
    theirs = json.loads(
        CliRunner().invoke(app, ["submit", "--json", "--framework", "env", "train.py"]).stdout
    )
    assert list(job.document) == list(theirs)
    assert job.state == "running"
    for each in (job, clusterkit.find_job(theirs["job_id"])):
        assert each.cancel()["state"] == "cancelled"


def test_warnings_are_warnings(desk: Path) -> None:
    (desk / "train.py").write_text("import horovod.torch as hvd\nhvd.init()\n")
    with pytest.warns(clusterkit.ClusterkitWarning, match="written for Horovod") as caught:
        clusterkit.render("train.py", framework="env", nodes=2)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clusterkit.render("train.py", framework="horovod", nodes=2)


def test_preflight(desk: Path) -> None:
    found = clusterkit.preflight(cluster="local", select=["HOST"])
    found.save(desk / "bundle")
    theirs = verb("preflight", "--replay", "bundle")
    again = clusterkit.preflight(replay="bundle")
    assert same(again.document, theirs)
    assert {**found.document, "seconds": 0} == {**theirs, "seconds": 0}
    assert found.fit == (not found.exclude)
    assert found.usable == ("localhost",)
    assert f"{len(found.usable)} of 1 nodes usable" in repr(found)
    assert "1 node usable" in found._repr_html_()
    with pytest.raises(clusterkit.UserError, match="replay asks no node"):
        clusterkit.preflight(replay="bundle", hosts="n1")
    with pytest.raises(clusterkit.UserError, match="no check is left"):
        clusterkit.preflight(select=["HOST"], ignore=["HOST"])
    assert "cluster" in inspect.signature(PreflightOptions).parameters


def test_a_strict_preflight_takes_a_warning_for_a_failure(desk: Path) -> None:
    octal = "clusters: {local: {run_dir: runs, env: {NCCL_IB_TIMEOUT: '022'}}}\n"
    (desk / "clusterkit.yaml").write_text(octal)
    assert clusterkit.preflight(cluster="local", select="NCCL001").fit
    assert not clusterkit.preflight(cluster="local", select="NCCL001", strict=True).fit


def test_preflight_keeps_a_job_from_being_submitted_unless_forced(desk: Path) -> None:
    wrong: Any = {"framework": "env", "env": {"NCCL_SOCKET_IFNAM": "eth0"}, "cluster": "local"}
    with pytest.raises(PreflightFailedError, match="not submitted: the job cannot run") as refused:
        clusterkit.submit("train.py", **wrong)
    assert refused.value.report.bad
    assert refused.value.problems[0].hint
    assert not list(desk.glob("runs/*"))
    with pytest.warns(clusterkit.ClusterkitWarning):
        forced = clusterkit.submit("train.py", **wrong, force=True)
    assert forced.wait()["state"] == "succeeded"


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (("--model", "llama-3.1-8b", "--gpu", "h100", "--gpus", "16"),
         {"model": "llama-3.1-8b", "gpu": "h100", "gpus": 16}),
        (("--params", "7B", "--gpu", "a100-80", "--gpus", "8", "--tokens", "2T", "--price", "2",
          "--explain", "--scale", "--strategy", "fsdp", "--margin", "0.1"),
         {"params": 7e9, "gpu": "a100-80", "gpus": 8, "tokens": 2e12, "price": 2.0,
          "explain": True, "scale": True, "strategy": "fsdp", "margin": 0.1}),
    ],
)  # fmt: skip
def test_estimate(desk: Path, words: tuple[str, ...], given: dict[str, Any]) -> None:
    assert desk.exists()
    found = clusterkit.estimate(**given)
    document, theirs = found.document, verb("estimate", *words)
    document["model"]["name"] = theirs["model"]["name"]  # 7B, or 7000000000.0
    assert same(document, theirs)
    assert found.recommended == theirs["recommended"]
    assert str(found.recommended) in found._repr_html_()
    assert found.why in repr(found)


def test_estimate_says_all_that_is_wrong(desk: Path) -> None:
    assert desk.exists()
    with pytest.raises(clusterkit.UserError) as error:
        clusterkit.estimate(model="llama-3.1-8b", gpu="h1000", micro_batch=0)
    for words in ("h1000", "how many GPUs?", "micro"):
        assert words in str(error.value)


def test_the_files_of_a_job_by_name(desk: Path) -> None:
    found = clusterkit.render("train.py", framework="torchrun", only="node")
    assert found["node.sh"].startswith("#!/usr/bin/env bash")
    with pytest.raises(KeyError, match=r"no job.sbatch among node.sh"):
        found["job.sbatch"]


def test_one_text_stands_for_a_list_of_one(desk: Path) -> None:
    with pytest.raises(clusterkit.UserError, match="no-such-job"):
        clusterkit.submit("train.py", framework="env", after="no-such-job")
    clusterkit.preflight(cluster="local", select="HOST").save(desk / "bundle")
    one = clusterkit.preflight(replay="bundle", select="HOST001").document
    assert same(one, clusterkit.preflight(replay="bundle", select=["HOST001"]).document)
