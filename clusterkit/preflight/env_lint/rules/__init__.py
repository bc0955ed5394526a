"""The rules of the lint: `rules.tsv` explains each, the modules here look for what it is about."""

from __future__ import annotations

from clusterkit.preflight.env_lint.rules import conflicts, lists, values
from clusterkit.preflight.env_lint.rules.base import Rule, Violation, by_table

__all__ = ["RULES", "Rule", "Violation"]

_CODED = (
    found
    for module in (values, lists, conflicts)
    for found in vars(module).values()
    if isinstance(found, Rule)
)
RULES: tuple[Rule, ...] = tuple(sorted((*_CODED, *by_table()), key=lambda rule: rule.id))
