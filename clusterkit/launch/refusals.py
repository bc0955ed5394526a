"""The problems of `refusals.tsv`: `{0}` there is the job, `{1}` its cluster."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from clusterkit.core.data import read_problem
from clusterkit.core.errors import UserError

problem = partial(read_problem, Path(__file__).with_name("refusals.tsv"))
"""Return a problem by its id, with what the rule adds."""


def refused(name: str, *values: object, **more: object) -> UserError:
    """Return the error that one problem makes."""
    return UserError(problems=[problem(name, *values, **more)])
