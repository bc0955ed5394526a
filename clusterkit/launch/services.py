"""Managed services that start node.sh themselves: how it learns there who its node is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterkit.core.data import read_table, read_template
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.model import LaunchPlan

_NOT_VARIABLES = ("service", "title", "source")
_BY_FIRST_NODE = ("torchrun", "accelerate", "deepspeed", "env")
"""Frameworks whose nodes need no names but that of the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What goes in front of node.sh for one service."""

    title: str
    words: tuple[str, ...]
    """Arguments of the program that reads the service's variables."""
    program: str


def service_for(name: str, plan: LaunchPlan) -> Service:
    """Return what goes in front of the node script of a job.

    Raises:
        UserError: there is no such service, or it cannot start such a job.
    """
    rows = {row["service"]: row for row in read_table(__file__, "services.tsv")}
    if name not in rows:
        raise UserError(f"--for {name}: no such service", hint=choices_hint(name, rows))
    row = rows[name]
    variables = {what: v for what, v in row.items() if v != "-" and what not in _NOT_VARIABLES}
    _require_names(variables, plan, row["title"])
    return Service(
        title=row["title"],
        words=(
            row["title"],
            str(plan.nodes),
            str(plan.max_nodes or plan.nodes),
            *(f"{what}={variable}" for what, variable in variables.items()),
        ),
        program=read_template("programs/services/service.py"),
    )


def _require_names(variables: Mapping[str, str], plan: LaunchPlan, title: str) -> None:
    if "first node" in variables and plan.nodes > 1 and plan.framework not in _BY_FIRST_NODE:
        raise UserError(
            f"--for {title}: {plan.framework} needs the names of all nodes, and the service tells"
            " that of the first alone",
            hint=f"frameworks that need no more: {', '.join(_BY_FIRST_NODE)}",
        )
