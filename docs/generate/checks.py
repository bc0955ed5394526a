"""The checks of preflight: a page for each area, a section for each check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterkit.cli.explain.topic import first_sentence, texts
from clusterkit.cli.explain.topics import WHEN
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.checks.base import Check
from docs.generate.page import Page, anchor, blocks, code, fenced, prose, table


def pages(root: Path) -> Iterator[Page]:
    """Yield the list of all checks, and the page of each area."""
    del root
    checks = all_checks()
    yield Page(path="reference/checks/index.md", text=_index(checks))
    for area, about in texts("areas").items():
        mine = tuple(check for check in checks if check.area == area)
        yield Page(path=f"reference/checks/{area.lower()}.md", text=_area(area, about, mine))


def _index(checks: Sequence[Check]) -> str:
    rows = (
        (f"[{c.id}](#{c.id.lower()})", code(c.name), prose(first_sentence(c.about.what)))
        for c in checks
    )
    verdicts = ((code(word), prose(text)) for word, text in texts("verdicts").items())
    areas = (area.lower() for area in texts("areas"))
    return blocks(
        "# Checks",
        f"What [`clusterkit preflight`](../../how-to/preflight.md) looks at: {len(checks)} checks. "
        "`clusterkit explain ID` says the same as these pages. An id is never used again for "
        "something else.",
        table(("verdict", "meaning"), verdicts),
        table(("id", "name", "proves that"), rows),
        fenced("\n".join((":hidden:", "", *areas)), "{toctree}"),
    )


def _area(area: str, about: str, checks: Sequence[Check]) -> str:
    parts = (part for check in checks for part in _check(check))
    return blocks(
        f"# {area}",
        prose(about),
        f"`clusterkit preflight --select {area}` asks these alone.",
        *parts,
    )


def _check(check: Check) -> Iterator[str]:
    about = check.about
    yield anchor(check.id.lower())
    yield f"## {check.id} {check.name}"
    yield prose(about.what)
    yield f"**Why it matters.** {prose(about.why)}"
    yield f"**How it is measured.** {prose(about.how)} {WHEN[check.tier]}"
    yield f"**How to fix it.** {prose(about.fix)}"
    yield f"**Source.** {prose(about.source)}"
