"""A framework whose package is not on the nodes: named, with what to type."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.findings import Verdict
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.images.catalogue import IMAGES
from clusterkit.images.packages import framework_called, image_with, pip_line
from clusterkit.launch.frameworks import framework_names, load_framework
from clusterkit.preflight.checks.base import Check, Evidence, Ruling
from clusterkit.preflight.probes.host import job_python
from clusterkit.transport.probe import PreflightJob, read_output
from tests.helpers.evidence import evidence
from tests.helpers.plans import make_cluster, make_plan
from tests.helpers.probe_run import named, run_probe
from tests.unit.executors.test_worker import result, start

LACKING = (
    "executable=/bin/python\nversion=3.11.2\nnoexec=0\n"
    "package clusterkit-launch=0.1.0\nwhole=1\nend\n"
)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return runfolder.create(make_cluster(tmp_path), "toy")


def asked(job: PreflightJob, *outputs: str) -> Evidence:
    return evidence(
        {host: {"job-python": text} for host, text in zip(job.hosts, outputs, strict=True)},
        job=job,
    )


def rulings(check: Check, found: Evidence) -> dict[str | None, Ruling]:
    return dict(check.judge(found))


def test_a_package_has_a_name_a_line_for_pip_and_an_image_where_one_has_it() -> None:
    deepspeed = load_framework("deepspeed")
    assert pip_line(deepspeed, "/opt/a b/python") == (
        "'/opt/a b/python' -m pip install 'deepspeed>=0.16' ninja 'torch>=2.6'"
    )
    assert image_with(deepspeed) == "clusterkit/deepspeed:cuda"
    ray = load_framework("ray")
    assert ray.package_name == "ray"
    assert pip_line(ray, "python3") == "python3 -m pip install 'ray[train]'"
    assert load_framework("env").package_name is None, "what it needs is the script's affair"
    assert framework_called("of another machine") is None
    for framework in map(load_framework, framework_names()):
        if framework.image in IMAGES and framework.package_name:
            assert image_with(framework) == f"clusterkit/{framework.image}:cuda", "it has it"
        else:
            assert image_with(framework) == (framework.image if "/" in framework.image else None)
            assert "/" in framework.image or framework.image in {"", *IMAGES}


@pytest.mark.parametrize(
    ("framework", "package", "image"),
    [
        ("deepspeed", "deepspeed", "clusterkit/deepspeed:cuda"),
        ("accelerate", "accelerate", "clusterkit/accelerate:cuda"),
        ("ray", "ray", "clusterkit/ray:cuda"),
        ("spark", "pyspark", "clusterkit/spark:cuda"),
    ],
)
def test_preflight_names_the_package_that_a_node_lacks(
    framework: str, package: str, image: str
) -> None:
    job = PreflightJob(hosts=("n1", "n2"), framework=framework, python="/opt/python")
    have = LACKING.replace("whole", f"package {package}=1.2.3\nwhole")
    found = rulings(named("host-packages"), asked(job, LACKING, have))
    assert found["n1"].verdict is Verdict.FAIL
    assert found["n1"].summary == f"{package} is not installed for the job's Python (/bin/python)"
    assert found["n1"].command.startswith("/opt/python -m pip install ")
    assert f"--image {image}" in found["n1"].hint
    assert "`python: /path/to/bin/python`" in found["n1"].hint
    assert found["n2"].verdict is Verdict.PASS
    assert f"{package} 1.2.3" in found["n2"].summary


def test_torch_is_told_of_once() -> None:
    job = PreflightJob(hosts=("n1",), framework="torchrun", python="/opt/python")
    assert rulings(named("host-packages"), asked(job, LACKING))["n1"].verdict is Verdict.PASS
    (found,) = rulings(named("host-torch"), asked(job, LACKING)).values()
    assert found.verdict is Verdict.FAIL
    assert found.command == "/opt/python -m pip install 'torch>=2.6'"
    assert found.summary == "torch is not installed for the job's Python (/bin/python)"


def test_modules_may_bring_what_a_plain_shell_lacks() -> None:
    job = PreflightJob(hosts=("n1",), framework="horovod", python_is_set_up=True)
    (found,) = rulings(named("host-packages"), asked(job, LACKING)).values()
    assert found.verdict is Verdict.WARN
    assert found.summary.endswith("in a plain shell")


@pytest.mark.parametrize("framework", ["env", "mpi", "somebody-elses", None])
def test_nothing_is_asked_for_a_framework_that_needs_nothing_known(framework: str | None) -> None:
    job = PreflightJob(hosts=("n1",), framework=framework)
    assert rulings(named("host-packages"), asked(job, LACKING))["n1"].verdict is Verdict.PASS


def test_the_probe_looks_for_the_package_of_the_framework(tmp_path: Path) -> None:
    """Installed by another name it is there, as a build for processors is; a bare folder is not."""

    def packages(framework: str) -> object:
        env = {"PYTHONPATH": str(tmp_path)}
        job = PreflightJob(hosts=("n1",), python=sys.executable, framework=framework, env=env)
        facts = read_output(job_python.PROBE, run_probe(job_python.PROBE, job))
        assert isinstance(facts, job_python.JobPython)
        assert facts.packages["torch"].startswith("2.")
        return facts.packages.get(load_framework(framework).package_name or "")

    assert packages("torchrun")
    (tmp_path / "pyspark").mkdir()
    assert packages("spark") is None
    (tmp_path / "pyspark" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    assert packages("spark") == "unknown"


@pytest.mark.parametrize(
    ("framework", "words", "said"),
    [
        ("deepspeed", "/usr/bin/python3: No module named deepspeed.launcher",
         "framework deepspeed needs the package deepspeed, which python3 on node-0 does not have"),
        ("torchrun", "ModuleNotFoundError: No module named 'torch'",
         "framework torchrun needs the package torch, which python3 on node-0 does not have"),
        ("torchrun", "ModuleNotFoundError: No module named 'transformers'", None),
        ("env", "ModuleNotFoundError: No module named 'torch'", None),
    ],
)  # fmt: skip
def test_a_launcher_that_is_not_there_is_the_last_word(
    run: RunFolder, framework: str, words: str, said: str | None
) -> None:
    plan = make_plan(make_cluster(run.path), framework=framework)
    files.write_json(run.plan, files.plain(plan))
    start(run, f'echo "{words}" >&2; exit 1').wait(120)
    tail = result(run).tail
    log = run.log(0).read_text().splitlines()
    assert tail[0] == log[0] == words
    if said is None:
        assert len(tail) == len(log) == 1
        return
    assert tail[1] == log[1] == f"clusterkit: {said}"
    assert tail[2].startswith("hint: python3 -m pip install '")
    assert framework.removesuffix("run") in tail[2]
    assert "--image clusterkit/" in tail[3]


def test_in_a_container_it_is_the_image_that_lacks_it(run: RunFolder) -> None:
    plan = files.plain(make_plan(make_cluster(run.path), framework="horovod"))
    files.write_json(run.plan, {**plan, "container": {"image": "mine:1"}})
    start(run, "echo \"No module named 'horovod'\"; exit 1").wait(120)
    assert "which the image mine:1 does not have" in result(run).tail[1]


@pytest.mark.parametrize(
    ("typed", "ours"), [("jax", "env"), ("FSDP", "torchrun"), ("pyspark", "spark")]
)
def test_what_a_framework_starts_leads_to_it(typed: str, ours: str) -> None:
    with pytest.raises(UserError, match=f"hint: --framework {ours}$"):
        load_framework(typed)
