"""The rules of the lint, by id; one small function each."""

from __future__ import annotations

from clusterkit.preflight.env_lint.rules import (
    conflicts,
    lists,
    names,
    production,
    shadowing,
    values,
    writing,
)
from clusterkit.preflight.env_lint.rules.base import Remark, Rule

__all__ = ["RULES", "Remark", "Rule"]

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (
            *names.RULES,
            *values.RULES,
            *lists.RULES,
            *writing.RULES,
            *shadowing.RULES,
            *conflicts.RULES,
            *production.RULES,
        ),
        key=lambda rule: rule.id,
    )
)
