"""The pages say what can be typed: commands parse, code compiles, every page is in the site."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import Check
from clusterkit.preflight.evaluate import findings_of
from docs.generate.site import BORROWED, written
from docs.generate.verbs import commands
from tests.helpers.doc_blocks import PAGES, ROOT, Command, blocks, command_lines, wrong_with
from tests.helpers.evidence import evidence


def _id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_every_command_of_a_page_can_be_typed(page: Path) -> None:
    wrong = {" ".join(found.words): wrong_with(found) for found in command_lines(page)}
    assert {line: why for line, why in wrong.items() if why} == {}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("submit --nodes 2 train.py --wrong", None),
        ("submit --nodez 2 train.py", "submit has no --nodez"),
        ("submit -z train.py", "submit has no -z"),
        ("images build torch:cpu --pip-conf pip.conf", None),
        ("images build --pip pip.conf", "build has no --pip"),
        ("images bild", "no verb images bild"),
        ("preflite", "no verb preflite"),
        ("VERB --help", None),
    ],
)
def test_a_command_that_cannot_be_typed_is_found(line: str, why: str | None) -> None:
    assert wrong_with(Command(page="x", words=tuple(line.split()))) == why


def test_commands_are_found_in_all_forms() -> None:
    page = ROOT / "docs" / "how-to" / "preflight.md"
    lines = {" ".join(found.words) for found in command_lines(page)}
    assert "preflight --network" in lines  # indented
    assert "preflight" in lines  # behind a prompt
    assert "explain ID" in lines  # in a line of text
    assert len(lines) > 20


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_python_compiles(page: Path) -> None:
    for text in blocks(page, "python"):
        compile(text, str(page), "exec")


(PAGE,) = blocks(ROOT / "docs" / "how-to" / "write-a-check.md", "python")
BEFORE = (ROOT / "tests" / "golden" / "check_of_the_release_before.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "name"),
    [pytest.param(PAGE, "swap", id="page"), pytest.param(BEFORE, "CHECK", id="release-before")],
)
def test_the_check_of_the_how_to_judges(text: str, name: str) -> None:
    """As it stands there, and as others wrote theirs after the page of the release before."""
    module = types.ModuleType("how_to_check")
    # As a dataclass asks for the module of its class.
    exec(compile(text, "write-a-check.md", "exec", dont_inherit=True), module.__dict__)
    check = getattr(module, name)
    assert isinstance(check, Check)
    head = "Filename Type Size Used Priority\n"
    found = findings_of(
        check,
        evidence(
            {
                "n1": {"site-swap": head},
                "n2": {"site-swap": f"{head}/dev/sda2 partition 8388604 0 -2\n"},
                "n3": {"site-swap": "no such file"},
            }
        ),
    )
    assert {finding.nodes: finding.verdict for finding in found} == {
        ("n1",): Verdict.PASS,
        ("n2",): Verdict.WARN,
        ("n3",): Verdict.UNKNOWN,
    }


def test_all_pages_are_in_the_site() -> None:
    pages = {str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")}
    assert set(written(ROOT)) == pages | set(BORROWED)
    assert all((ROOT / origin).is_file() for origin in BORROWED)


def test_every_verb_is_in_the_pages_of_people() -> None:
    named = {found.words[0] for page in PAGES for found in command_lines(page) if found.words}
    verbs = {words for words in commands() if " " not in words}
    assert verbs - named == set()
