"""The failures that `clusterkit diagnose` knows, from its rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clusterkit.observe.diagnose.rules import ENGINE_FIELDS, Role, Rule, own_rules
from docs.generate.page import Page, anchor, blocks, code, fenced, prose, table

_ROLES = {
    Role.CAUSE: "can be the root of a failure",
    Role.SYMPTOM: "is taken for the root only where nothing better is found",
    Role.CONSEQUENCE: "happens to ranks because another has failed; never the root",
}


def pages(root: Path) -> Iterator[Page]:
    """Yield the one page of this module."""
    del root
    rules = sorted(own_rules(), key=lambda rule: rule.id)
    rows = (
        (f"[{rule.id}](#failure-{rule.id})", str(rule.role), prose(_plain(rule, rule.title)))
        for rule in rules
    )
    yield Page(
        path="reference/failures.md",
        text=blocks(
            "# Failures",
            f"What [`clusterkit diagnose`](../how-to/diagnose.md) knows: {len(rules)} rules, one "
            "small file each. Words in capitals stand for what the log says.",
            table(("role", "a line of this kind"), ((code(k), v) for k, v in _ROLES.items())),
            table(("rule", "role", "what happened"), rows),
            *(part for rule in rules for part in _section(rule)),
        ),
    )


def _section(rule: Rule) -> Iterator[str]:
    yield anchor(f"failure-{rule.id}")
    yield f"## {rule.id}"
    yield prose(_plain(rule, rule.says))
    yield fenced(rule.examples[0])
    yield f"**What to do.** {prose(_plain(rule, rule.do))}"
    yield f"**Source.** {prose(rule.source)}"


def _plain(rule: Rule, text: str) -> str:
    """Return a text with the names of its groups, where a log would fill them in."""
    groups = {name for pattern in rule.patterns for name in pattern.groups}
    return rule.fill(text, {name: name.upper() for name in groups | ENGINE_FIELDS})
