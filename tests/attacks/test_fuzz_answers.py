"""Answers and bundles that strangers made up: no parser, check or page ends with an exception.

Every registered probe is fed, by enumeration, what nodes really print with hostile pieces in it,
and what has no form at all. A hostile node takes no finding from the others, runs nothing in a
command that is pasted, and puts no element of its own into the page.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.observe.diagnose.stacks import fold_stacks
from clusterkit.observe.vitals.sample import ONCE, PROBES, rates, read_samples
from clusterkit.preflight.bundle import Bundle, write_bundle
from clusterkit.preflight.bundle_reader import read_bundle
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.checks.base import Tier
from clusterkit.preflight.evaluate import evaluate
from clusterkit.preflight.html.page import page
from clusterkit.preflight.network import with_network
from clusterkit.preflight.text import report_lines
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import Missing, Output, PreflightJob, Probe, Reach, read_output
from clusterkit.transport.script import MOST_OF_NODE, AnswerReader, Compound
from tests.helpers.mangling import mangled
from tests.unit.preflight.test_parsers import OURS

CHECKS = all_checks()
ALL: dict[str, Probe[object]] = {
    probe.name: probe
    for probe in (*(probe for check in CHECKS for probe in check.probes), *PROBES, *ONCE)
}
COMMAND = "$(reboot)`reboot`;reboot&"
SCRIPT = "<script>owned()</script><img src=x onerror=owned()>"
NASTY = (
    *("9" * 5000, "-1", "1e400", "nan", "inf", "-inf", str(1 << 64), str(1 << 42), "1e-400", "٣"),
    *(
        "0x" + "f" * 40,
        "[" * 3000,
        "\x1b]0;owned\x07",
        "\u202e\u2028\x00",
        "\ud800",
        "\r",
        " " * 999,
    ),
    *(COMMAND, SCRIPT, "'", '"', "n1", "good", "../../etc", "-o", "|", "a" * 3000),
    *('{"gpu_data": [{"gpu": ' + "9" * 4000 + "}]}", '{"card0": {"GPU use (%)": "1e999"}}'),
    *("NaN", '{"a":' * 2000, '"\\ud800"'),
)
HOSTS = ("good", "other", "bad", "third")
JOB = PreflightJob(hosts=HOSTS, gpus_per_node=8, uses_gpus=True, paths=("/data",), port=20000)


@st.composite
def hostile(draw: st.DrawFn, text: str) -> str:
    """Return an answer with words of it replaced by what no machine says."""
    if draw(st.booleans()):
        text = draw(mangled(text))
    for _ in range(draw(st.integers(0, 3))):
        words = [match.span() for match in re.finditer(r"[\w.+-]+", text)]
        if not words:
            break
        begin, end = draw(st.sampled_from(words))
        text = text[:begin] + draw(st.sampled_from(NASTY)) + text[end:]
    return draw(st.sampled_from((text, text, text, *NASTY)))


def examples(name: str) -> str:
    return OURS.get(name, "x=1\nend\n")


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("name", sorted(ALL))
@given(data=st.data())
def test_no_answer_breaks_a_parser(name: str, data: st.DataObject) -> None:
    text = data.draw(hostile(examples(name)) | st.text())
    facts = read_output(ALL[name], Output(stdout=text))
    repr(facts).encode(errors="surrogatepass")
    if isinstance(facts, Missing):
        assert "\x1b" not in facts.reason
        assert "\n" not in facts.reason
        assert len(facts.reason) < 400
    else:
        json.dumps(files.plain(facts))


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_reading_breaks_the_figures_of_top(data: st.DataObject) -> None:
    samples = []
    for _ in range(2):
        outputs = {
            probe.name: Output(stdout=data.draw(hostile(OURS.get(probe.name, "units 100 4096\n"))))
            for probe in PROBES
        }
        found = read_samples(outputs)
        samples += [] if isinstance(found, Missing) else list(found)
    for before, after in itertools.pairwise(samples):
        rates(before, after)


def bundle(outputs: dict[str, str]) -> Bundle:
    honest = {name: Output(stdout=text) for name, text in OURS.items()}
    lying = {name: Output(stdout=text) for name, text in outputs.items()}
    return Bundle(
        job=JOB,
        replies=tuple(
            Reply(
                node=host,
                reach=Reach(via="ssh"),
                outputs={**honest, **lying} if host == "bad" else honest,
            )
            for host in HOSTS
        ),
        collected_at=1.8e9,
        seconds=3.0,
        checks=tuple(check.id for check in CHECKS),
    )


def of_others(report: object) -> list[tuple[str, str, str]]:
    alone = {check.id for check in CHECKS if check.tier is Tier.NODE and check.area != "SSH"}
    return sorted(
        (finding.id, node, finding.verdict.value + finding.summary)
        for finding in report.findings  # type: ignore[attr-defined]
        if finding.id in alone
        for node in finding.nodes
        if node != "bad"
    )


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts = 0
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag in {"script", "img", "iframe", "object"}
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


HONEST = evaluate(bundle({}), CHECKS)
HONEST_PAGE = _Page(page(bundle({}), HONEST))


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_answer_breaks_a_check_nor_takes_what_others_said(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(OURS)), min_size=1, max_size=6, unique=True))
    known = bundle({name: data.draw(hostile(OURS[name])) for name in names})
    report = evaluate(known, CHECKS)
    assert of_others(report) == of_others(HONEST)
    list(report_lines(report, verbose=True))
    json.dumps(files.plain(report.document()), allow_nan=False)
    for finding in report.findings:
        unquoted = re.sub(r"'[^']*'", "", finding.command)
        assert "reboot" not in unquoted
    html = page(known, report)
    html.encode()
    shown = _Page(html)
    assert shown.scripts == HONEST_PAGE.scripts
    assert shown.handlers == HONEST_PAGE.handlers


class Made:
    """A transport to nodes that answer what is made up for each of them and each question."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def ask(
        self, nodes: Sequence[str], compound: Compound, *, on_reply: Callable[[Reply], None]
    ) -> tuple[Reply, ...]:
        (name,) = compound.names
        text = OURS[name].replace(" b ", " good ").replace(" a ", " other ")
        said = dict.fromkeys(nodes, text) | {"bad": self.data.draw(hostile(text))}
        return tuple(
            Reply(node=node, reach=Reach(via="ssh"), outputs={name: Output(stdout=said[node])})
            for node in nodes
        )


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_node_breaks_the_traffic_between_all(data: st.DataObject) -> None:
    checks = [check for check in CHECKS if check.tier is Tier.NETWORK]
    known = with_network(bundle({}), Made(data), checks)
    report = evaluate(known, CHECKS)
    list(report_lines(report, verbose=True))
    page(known, report)


COMPOUND = Compound(script="", token="cktoken", names=("a", "b"), timeout_s=1)


PIECES = (
    *(b"cktoken 0 a o ", b"cktoken 0 - @ ", b"cktoken 0 a = ", b"cktoken 0 - = 0 - -\n"),
    *(b"\n", b" 0 1 2\n", b"1e400 x\n"),
)


@given(st.lists(st.binary(max_size=200) | st.sampled_from(PIECES)))
def test_no_bytes_break_the_frames(pieces: list[bytes]) -> None:
    reader = AnswerReader(COMPOUND)
    for piece in pieces:
        reader.feed(piece)
    answer = reader.answer()
    if answer is not None and answer.clock is not None:
        assert 0 <= answer.clock < 1e11
        assert all(0 <= output.seconds < 1e19 for output in answer.outputs.values())


@pytest.mark.parametrize("piece", [b"x" * 65536, b"\n" * 65536, b"cktoken 0 a o x\n" * 4096])
def test_frames_are_bounded_while_they_are_read(piece: bytes) -> None:
    reader = AnswerReader(COMPOUND)
    for _ in range(200):
        reader.feed(piece)
    assert reader.excess
    answer = reader.answer()
    kept = 0 if answer is None else sum(len(o.stdout) for o in answer.outputs.values())
    assert kept + len(reader.noise) <= MOST_OF_NODE


LINES = (
    *("@ 1 0", "@ 1 0 good", "@ 9 " + "9" * 5000, "! none", "! missing", "@ 1 1 other"),
    *('Thread 1 (idle): "MainThread"', "    f (a.py:1)", "    \x1b[2J", "\ud800"),
)


@given(st.lists(st.sampled_from(LINES)))
def test_no_stack_breaks_or_speaks_for_another_node(lines: list[str]) -> None:
    probe = Probe(name="stacks", command="", parse=str)
    reply = Reply(
        node="bad",
        reach=Reach(via="ssh"),
        outputs={"stacks": Output(stdout="\n".join(lines) + "\n")},
    )
    silent = Reply(node="good", reach=Reach(via="ssh"), outputs={"stacks": Output(stdout="")})
    found = fold_stacks(probe, [reply, silent])
    assert "good" not in {node for group in found.groups for node in group.nodes}
    assert "good" not in {trouble.node for trouble in found.troubles}
    assert all(rank < 1 << 24 for group in found.groups for rank in group.ranks)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzzed") / "bundle"
    write_bundle(folder, bundle({}))
    return folder


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_bundle_is_an_exception(saved: Path, data: st.DataObject) -> None:
    manifest = saved / "manifest.json"
    whole = manifest.read_text()
    document = json.loads(whole)
    values = st.sampled_from(
        (None, -1, 10**30, 1e300, float("nan"), float("inf"), "", COMMAND, SCRIPT, "..", "/etc",
         "\ud800", [], {}, True, 65536, -0.5, "9" * 5000, ["x"], {"x": 1})
    )  # fmt: skip
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from([p for p in places(document) if p]))
        holder = document
        for key in path:
            holder = holder[key]
        holder[last] = data.draw(values)
    text = json.dumps(document)
    if data.draw(st.booleans()):
        text = data.draw(mangled(text))
    try:
        manifest.write_text(text, errors="surrogatepass")
        try:
            known = read_bundle(saved)
        except UserError:
            return
        report = evaluate(known, CHECKS)
        list(report_lines(report, verbose=True))
        html = page(known, report)
        html.encode()
        shown = _Page(html)
        assert shown.handlers == HONEST_PAGE.handlers
        for finding in report.findings:
            assert "reboot" not in re.sub(r"'[^']*'", "", finding.command)
    finally:
        manifest.write_text(whole)


def test_a_bundle_is_bounded_and_leads_nowhere_else(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    write_bundle(folder, bundle({}))
    output = next(path for path in (folder / "good").iterdir() if path.suffix == ".out")
    with output.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="larger than"):
        read_bundle(folder)
    output.unlink()
    output.symlink_to("/etc/shadow")
    with pytest.raises(UserError, match="symbolic link"):
        read_bundle(folder)
    output.unlink()
    with (folder / "manifest.json").open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="larger than"):
        read_bundle(folder)


def test_a_job_of_a_bundle_keeps_its_own_nodes() -> None:
    twice = dataclasses.replace(bundle({}), replies=())
    assert evaluate(twice, CHECKS).usable == ()
