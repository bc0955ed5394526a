"""Bundles on disk, folding, the report, and the choice of checks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterkit.core.errors import UserError
from clusterkit.core.findings import Finding, Verdict
from clusterkit.preflight.bundle import Bundle, write_bundle
from clusterkit.preflight.bundle_reader import read_bundle
from clusterkit.preflight.checks import all_checks, select_checks
from clusterkit.preflight.checks import results as check_results
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Ruling,
    each,
    majority,
    passed,
    uniform,
)
from clusterkit.preflight.evaluate import evaluate
from clusterkit.preflight.on_node import ELSEWHERE
from clusterkit.preflight.report import Report
from clusterkit.preflight.text import report_lines
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import Output, PreflightJob, Probe, Reach, ReachProblem, Unparsed
from tests.helpers.probe_run import named

ABOUT = About(what="W.", why="Y.", how="H.", fix="F.", source="S.")


def number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise Unparsed(str(error)) from error


HEAT = Probe(name="heat", command="cat heat", parse=number)


def judge_heat(evidence: Evidence) -> Iterator[tuple[str | None, Ruling]]:
    def rule(degrees: int) -> Ruling:
        if degrees < 50:
            return passed("cool")
        return Ruling(
            verdict=Verdict.FAIL, summary="hot", evidence=f"{degrees} C", hint="open a window"
        )

    yield from each(evidence, HEAT, rule)


def judge_same(evidence: Evidence) -> Iterator[tuple[str | None, Ruling]]:
    yield from uniform(evidence, HEAT, lambda n: n or None, what="heat", odd=Verdict.WARN)


HOT = Check(id="HOST901", name="host-heat", about=ABOUT, probes=(HEAT,), judge=judge_heat)
SAME = Check(id="HOST902", name="host-same", about=ABOUT, probes=(HEAT,), judge=judge_same)


def bundle(**degrees: str | Output | ReachProblem) -> Bundle:
    def reply(node: str, said: str | Output | ReachProblem) -> Reply:
        if isinstance(said, ReachProblem):
            return Reply(node=node, reach=Reach(problem=said, detail="no"))
        output = said if isinstance(said, Output) else Output(stdout=said, seconds=0.25)
        return Reply(node=node, reach=Reach(via="ssh", latency_s=0.001), outputs={"heat": output})

    return Bundle(
        job=PreflightJob(hosts=tuple(degrees), env={"FI_A": "b"}, paths=("/run",), gpus_per_node=8),
        replies=tuple(reply(node, said) for node, said in degrees.items()),
        collected_at=1.5,
        seconds=2.5,
    )


def test_equal_rulings_are_one_finding_with_the_evidence_of_each() -> None:
    report = evaluate(bundle(n1="20", n2="90", n3="30", n4="95", n5="?"), [HOT])
    assert [(f.verdict, f.nodes) for f in report.findings] == [
        (Verdict.PASS, ("n1", "n3")),
        (Verdict.UNKNOWN, ("n5",)),
        (Verdict.FAIL, ("n2", "n4")),
    ]
    assert report.findings[-1].evidence == "n2: 90 C\nn4: 95 C"
    assert report.exclude == ("n2", "n4")
    assert report.usable == ("n1", "n3", "n5")
    assert report.counts() == {"skip": 0, "pass": 1, "unknown": 1, "warn": 0, "fail": 1}


def test_strict_takes_no_chances() -> None:
    report = evaluate(bundle(n1="20", n2="?"), [HOT], strict=True)
    assert report.exclude == ("n2",)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("problem", ReachProblem)
def test_a_node_that_was_not_reached_is_not_usable(problem: ReachProblem, strict: bool) -> None:
    """Whichever checks are chosen: the one of reach among them or not, or none at all."""
    unreached = bundle(n1="20", n2=problem)
    for checks in ([HOT], [HOT, named("ssh-reachable")], []):
        report = evaluate(unreached, checks, strict=strict)
        assert report.usable == ("n1",)
        assert ("n2",) in [f.nodes for f in report.findings if f.id == "SSH001"]
        busy = problem is ReachProblem.BUSY and not strict
        assert report.exclude == (() if busy or problem is ReachProblem.DEFERRED else ("n2",))


def test_where_all_were_reached_nothing_is_said_of_it_unasked() -> None:
    assert {f.id for f in evaluate(bundle(n1="20", n2="20"), [HOT]).findings} == {"HOST901"}


def test_most_nodes_are_right() -> None:
    report = evaluate(bundle(n1="20", n2="20", n3="21", n4="0"), [SAME])
    by_verdict = {finding.verdict: finding for finding in report.findings}
    assert by_verdict[Verdict.WARN].nodes == ("n3",)
    assert by_verdict[Verdict.WARN].summary == "heat is 21, most nodes have 20"
    assert by_verdict[Verdict.WARN].evidence == "20: 2, 21: 1"
    assert by_verdict[Verdict.SKIP].nodes == ("n4",)


def test_a_tie_has_no_majority() -> None:
    assert majority({"a": 1, "b": 2}) is None
    assert majority({"a": 1}) == 1
    assert majority({}) is None
    report = evaluate(bundle(n1="20", n2="21"), [SAME])
    assert [finding.verdict for finding in report.findings] == [Verdict.WARN]
    assert report.findings[0].nodes == ("n1", "n2")


def test_a_bundle_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    before = bundle(
        n1="20",
        n2=Output(stdout="", stderr="sh: é\n", exit_code=None),
        n3=ReachProblem.HOST_KEY_CHANGED,
    )
    write_bundle(tmp_path / "b", before)
    assert (tmp_path / "b" / "n1" / "heat.out").read_text() == "20"
    assert read_bundle(tmp_path / "b") == before


def test_a_bundle_goes_into_a_new_folder_only(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UserError, match="not empty"):
        write_bundle(tmp_path, bundle(n1="20"))


@pytest.mark.parametrize(("amd", "said"), [(Verdict.SKIP, True), (Verdict.PASS, False)])
def test_that_no_node_has_a_driver_is_said(amd: Verdict, said: bool) -> None:
    """Else `2 nodes usable` reads as if GPUs had been looked at."""
    checks = (("GPU001", "gpu-driver", Verdict.SKIP), ("GPU023", "gpu-amd", amd))
    findings = tuple(
        Finding(id=id_, check=name, verdict=verdict, nodes=("n1", "n2"), summary="")
        for id_, name, verdict in checks
    )
    lines = [line for _, line in report_lines(Report(nodes=("n1", "n2"), findings=findings))]
    assert lines[-1] == "2 nodes usable"
    assert ("no node has an NVIDIA driver: what GPUs need was not checked" in lines) == said


def test_lines_fit_the_terminal_and_the_worst_comes_last() -> None:
    report = evaluate(bundle(n1="20", n2="90", n3="20", n4=ReachProblem.TIMEOUT), [HOT, SAME])
    text = [line for _, line in report_lines(report, width=80)]
    assert all(len(line) <= 80 for line in text)
    assert text[-2:] == ["2 of 4 nodes usable; leave out the others:", "  --exclude 'n[2,4]'"]
    assert "fail     HOST901 host-heat  n2" in text
    assert "         hint: open a window" in text
    assert not any("HOST901 host-heat  n[1,3]" in line for line in text)
    verbose = [line for _, line in report_lines(report, verbose=True)]
    assert "pass     HOST901 host-heat  n[1,3]" in verbose


def test_why_most_were_skipped_and_that_the_default_framework_lacks_its_package() -> None:
    reasons = ("no GPU", "no GPU", "torch is not installed")
    findings = tuple(
        Finding(id=f"X{n}", check="c", verdict=Verdict.SKIP, nodes=("n1", "n2"), summary=reason)
        for n, reason in enumerate(reasons)
    )
    text = [line for _, line in report_lines(Report(nodes=("n1", "n2"), findings=findings))]
    assert "skipped, 2 of 3: no GPU" in text
    joined = " ".join(line.strip() for line in text)
    assert "torch is not installed on n[1-2]: jobs with torchrun, the default, need it" in joined
    long = dataclasses.replace(findings[0], summary="no GPU " * 20)
    report = Report(nodes=("n1", "n2"), findings=(long, long, findings[2]))
    assert all(len(line) <= 60 for _, line in report_lines(report, width=60))
    few = dataclasses.replace(findings[0], nodes=("n1",))
    without = [line for _, line in report_lines(Report(nodes=("n1",), findings=(few,)))]
    assert not any(line.startswith(("skipped", "torch")) for line in without)


def test_a_finding_about_the_job_excludes_nobody() -> None:
    finding = Finding(id="NCCL901", check="c", verdict=Verdict.FAIL, nodes=(), summary="s")
    report = Report(nodes=("n1",), findings=(finding,))
    assert (report.exclude, report.job_cannot_run) == ((), True)
    assert any("the job cannot run" in line for _, line in report_lines(report))


def test_checks_are_chosen_by_id_name_or_area() -> None:
    gpu = dataclasses.replace(HOT, id="GPU901", name="gpu-heat")
    checks = (HOT, SAME, gpu)
    assert select_checks(checks) == checks
    assert select_checks(checks, select=["gpu"]) == (gpu,)
    assert select_checks(checks, select=["HOST", "GPU901"], ignore=["host-same"]) == (HOT, gpu)
    with pytest.raises(UserError) as caught:
        select_checks(checks, select=["GPU90"], ignore=["nosuch"])
    assert len(caught.value.problems) == 2
    assert "did you mean 'gpu901'" in str(caught.value)


def test_all_advice_of_checks_is_written_and_used() -> None:
    """A case that a check names stands in `checks.ini`, and what stands there is named."""
    sources = "".join(p.read_text() for p in Path(check_results.__file__).parent.glob("*.py"))
    for id_, case in re.findall(r'advice\("(\w+)", "([\w-]+)"', sources):
        assert {f"hint.{case}", f"command.{case}"} & check_results.texts_of(id_).keys(), (id_, case)
    for id_ in re.findall(r'advice\("(\w+)"[,)]', sources):
        keys = [
            key.partition(".")
            for key in check_results.texts_of(id_)
            if key.startswith(("hint", "command"))
        ]
        assert keys, id_
        for _, _, case in keys:
            assert f'"{case}"' in sources, (id_, case)


def test_checks_of_others_come_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_others.py").write_text(
        "from clusterkit.preflight.checks.base import about, check, ok\n"
        "@check('HOST999', 'host-of-others')\n"
        "@about(what='w', why='w', how='h', fix='f', source='s')\n"
        "def special(evidence):\n"
        "    yield None, ok('well')\n"
    )
    info = tmp_path / "of_others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: of-others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[clusterkit.checks]\nx = of_others:special\n")
    before = {check.id for check in all_checks()}
    monkeypatch.syspath_prepend(tmp_path)
    assert {check.id for check in all_checks()} - before == {"HOST999"}
    assert "HOST999" in {check.id for check in all_checks(ELSEWHERE)}
