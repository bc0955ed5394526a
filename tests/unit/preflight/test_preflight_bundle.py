"""Bundles that came to harm on their way: what is wrong, where, and never a traceback."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.bounds import LATEST_S
from clusterkit.core.errors import UserError
from clusterkit.preflight.bundle import Bundle, write_bundle
from clusterkit.preflight.bundle_reader import read_bundle, read_job
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.evaluate import evaluate
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import Output, PreflightJob, Reach


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a bundle of two nodes."""
    outputs = {"heat": Output(stdout="20\n", stderr="warm\n")}
    bundle = Bundle(
        job=PreflightJob(hosts=("n1", "n2"), env={"NCCL_DEBUG": "INFO"}, paths=("/run",)),
        replies=tuple(
            Reply(node=node, reach=Reach(via="ssh"), outputs=outputs) for node in ("n1", "n2")
        ),
        collected_at=1.5,
        seconds=2.5,
    )
    write_bundle(tmp_path / "b", bundle)
    return tmp_path / "b"


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_bundle(folder)
    (problem,) = caught.value.problems
    assert problem.hint
    return str(problem)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["job"].update(env=None), "job.env: "),
        (lambda d: d["job"].update(env={"NCCL_DEBUG": 5}), "job.env.NCCL_DEBUG: "),
        (lambda d: d["job"].update(gpus_per_node="eight"), "job.gpus_per_node: "),
        (lambda d: d["job"].update(gpus_per_node=True), "job.gpus_per_node: "),
        (lambda d: d["job"].update(paths=None), "job.paths: "),
        (lambda d: d["job"].update(paths=[1]), "job.paths.0: "),
        (lambda d: d["job"].update(hosts="n1"), "job.hosts: "),
        (lambda d: d["job"].update(hosts=["n1", "n3"]), "for other nodes"),
        (lambda d: d["job"].update(slots={"n1": None}), "job.slots.n1: "),
        (lambda d: d.update(job={}), "job.hosts: "),
        (lambda d: d.pop("job"), "job: "),
        (lambda d: d["nodes"][0]["reach"].update(latency_s="fast"), "nodes.0.reach.latency_s: "),
        (lambda d: d["nodes"][0]["reach"].update(problem="new"), "nodes.0.reach.problem: "),
        (lambda d: d["nodes"][0]["probes"]["heat"].update(exit_code="x"), "heat.exit_code: "),
        (lambda d: d["nodes"][0].update(probes=[]), "nodes.0.probes: "),
        (lambda d: d["nodes"][0].update(name="../up"), "not a name of a node"),
        (lambda d: d["nodes"][0].update(name="n2"), "node n2 stands twice"),
        (lambda d: d.update(nodes=[]), "names no node"),
        (lambda d: d.update(nodes={}), "nodes: "),
        (lambda d: d.update(nodes=3), "nodes: "),
        (lambda d: d.update(collected_at=None), "collected_at: "),
        (lambda d: d.update(collected_at=math.nan), "collected_at is nan"),
        (lambda d: d.update(collected_at=math.inf), "collected_at is inf"),
        (lambda d: d.update(collected_at=-1.0), "collected_at is -1.0"),
        (lambda d: d.update(collected_at=LATEST_S + 1), "collected_at is 32503680001.0"),
        (lambda d: d.update(checks=[5]), "checks.0: "),
        (lambda d: d.update(schema="1"), "no schema '1'"),
        (lambda d: d.update(schema=0), "no schema 0"),
    ],
)
def test_a_manifest_that_says_something_else(
    folder: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    rewrite(folder, change)
    message = refusal(folder)
    assert f"{folder / 'manifest.json'} is damaged: " in message
    assert said in message


def test_what_a_newer_version_adds_is_left_out(folder: Path) -> None:
    rewrite(folder, lambda d: d["job"].update(colour="red"))
    assert read_bundle(folder).job.hosts == ("n1", "n2")


def test_another_schema_needs_another_version(folder: Path) -> None:
    rewrite(folder, lambda d: d.update(schema=2, clusterkit="9.1"))
    message = refusal(folder)
    assert "written by clusterkit 9.1" in message
    assert "read it with the clusterkit that wrote it, or a newer one" in message


def test_what_is_no_bundle_is_none(folder: Path, tmp_path: Path) -> None:
    """And what is wrong is told apart: no folder, no manifest, half of one, another file."""
    manifest = folder / "manifest.json"
    text = manifest.read_bytes()
    assert "does not exist" in refusal(tmp_path / "nosuch")
    assert "is a file" in refusal(manifest)
    assert "no file manifest.json in it" in refusal(tmp_path)
    for left in (text[:200], b"", b"\xff\xfe", b"[" * 100_000):
        manifest.write_bytes(left)
        assert f"{manifest} is damaged" in refusal(folder)
    for other in ("{}", "[]", "7"):
        manifest.write_text(other)
        assert "names no schema" in refusal(folder)
    manifest.write_text('{"schema": 1}')
    assert f"{manifest} is damaged: job: " in refusal(folder)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    moved = path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(moved)


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("n1/heat.out", _folder),
        ("n1/heat.err", _pipe),
        ("n1/heat.out", _link),
        ("n1", _link),
        ("manifest.json", _link),
    ],
)
def test_only_files_of_its_own_are_read(
    folder: Path, name: str, harm: Callable[[Path], None]
) -> None:
    """A link could lead to anything that whoever replays may read."""
    harm(folder / name)
    assert str(folder / name) in refusal(folder)


def test_files_that_no_probe_wrote_are_not_read(folder: Path) -> None:
    (folder / "n1" / ".DS_Store").mkdir()
    assert read_bundle(folder).replies[0].outputs["heat"].stdout == "20\n"


def test_a_job_without_hosts_of_its_own() -> None:
    job = read_job({"job": {"hosts": []}}, hosts=("n1",))
    assert job.hosts == ("n1",)
    for damaged in ({}, {"job": None}, {"job": {"hosts": [], "env": 3}}):
        with pytest.raises(UserError, match="the job of a preflight is damaged"):
            read_job(damaged, hosts=("n1",))


def test_every_check_judges_a_bundle_without_answers(folder: Path) -> None:
    rewrite(folder, lambda d: [node.update(probes={}) for node in d["nodes"]])
    assert evaluate(read_bundle(folder), all_checks()).nodes == ("n1", "n2")
