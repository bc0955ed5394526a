"""The how-to of preflight lists every check; `make golden` writes the list anew."""

from __future__ import annotations

import os
import re

from clusterkit.cli.explain.topic import first_sentence
from clusterkit.preflight.checks import all_checks
from tests.helpers.paths import ROOT

PAGE = ROOT / "docs" / "how-to" / "preflight.md"
HEAD = "| id | name | proves that |\n| --- | --- | --- |\n"


def test_the_page_lists_every_check() -> None:
    rows = "".join(
        f"| {c.id} | {c.name} | {first_sentence(c.about.what)} |\n" for c in all_checks()
    )
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get("CLUSTERKIT_GOLDEN") == "write":
        page = re.sub(f"{re.escape(HEAD)}(\\|.*\n)*", lambda _: HEAD + rows, page)
        PAGE.write_text(page, encoding="utf-8")
    found = re.search(f"{re.escape(HEAD)}((?:\\|.*\n)*)", page)
    assert found is not None
    assert found[1] == rows, "a check was added or changed: make golden"


def test_the_pages_agree_on_their_number() -> None:
    root = PAGE.parent.parent.parent
    count = str(len(all_checks()))
    for page in (PAGE, root / "README.md", root / "CHANGELOG.md"):
        said = re.findall(r"\b(\d+)\s+checks\b", page.read_text(encoding="utf-8"))
        assert said == [count], page
