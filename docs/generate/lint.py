"""The rules of `lint-env`, and the variables that it knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clusterkit.cli.explain.topic import texts
from clusterkit.preflight.env_lint.lint import RULES
from clusterkit.preflight.env_lint.variables import NEWEST_NCCL, Variable, all_variables
from docs.generate.page import Page, anchor, blocks, code, prose, table


def pages(root: Path) -> Iterator[Page]:
    """Yield the page of the rules, and that of the variables."""
    del root
    yield Page(path="reference/lint-rules.md", text=_rules())
    yield Page(path="reference/variables.md", text=_variables())


def _rules() -> str:
    rows = (
        (f"[{rule.id}](#{rule.id.lower()})", code(rule.name), rule.verdict, prose(rule.what))
        for rule in RULES
    )
    sections = []
    for rule in RULES:
        sections += [
            anchor(rule.id.lower()),
            f"## {rule.id} {rule.name}",
            f"{_sentence(rule.what)} Verdict: `{rule.verdict}`.",
            f"**Why.** {prose(rule.why)}",
            f"**How to fix it.** {prose(rule.fix)}",
        ]
    return blocks(
        "# Lint rules",
        "What [`clusterkit lint-env`](../how-to/nccl-environment.md) and preflight look for in "
        "the variables of NCCL and its siblings. `--allow NAME`, or `allowed_env:` of a cluster, "
        "leaves a variable alone.",
        table(("id", "name", "verdict", "finds"), rows),
        *sections,
    )


def _sentence(text: str) -> str:
    return prose(text[:1].upper() + text[1:].rstrip(".")) + "."


def _variables() -> str:
    parts = []
    for family, title in texts("families").items():
        rows = (
            (code(known.name), "; ".join(_facts(known)))
            for known in all_variables()
            if known.family == family
        )
        listed = table(("variable", "what is known"), rows)
        parts += [f"## {title}", listed] if listed else []
    return blocks(
        "# Variables of NCCL and its siblings",
        f"What `lint-env` knows of each, up to NCCL {NEWEST_NCCL}. `clusterkit explain NAME` says "
        "what its values may be.",
        *parts,
    )


def _facts(known: Variable) -> Iterator[str]:
    yield prose(texts("kinds")[known.kind].format(until=known.until or "a while"))
    if known.default:
        yield f"default {code(known.default)}"
    if known.replaced_by:
        yield f"write {code(known.replaced_by)}"
    if known.note:
        yield prose(known.note)
