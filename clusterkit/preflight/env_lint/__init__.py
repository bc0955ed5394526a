"""Lint the variables of NCCL and its siblings (PyTorch, Gloo, UCX, RCCL, libfabric). Pure.

`read_source` and `from_environment` make settings, `lint` judges them by the rules in `rules/`,
and `variables.tsv` is what is known of each name.
"""

from __future__ import annotations

from clusterkit.preflight.env_lint.lint import RULES, LintFinding, lint
from clusterkit.preflight.env_lint.rules.base import Rule
from clusterkit.preflight.env_lint.setting import Format, Setting, Source
from clusterkit.preflight.env_lint.sources import from_environment, guess_format, read_source

__all__ = [
    "RULES",
    "Format",
    "LintFinding",
    "Rule",
    "Setting",
    "Source",
    "from_environment",
    "guess_format",
    "lint",
    "read_source",
]
