"""Flags that verbs of several kinds have, and how verbs get the flags of a table."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from clusterkit.cli.frame import console
from clusterkit.core.data import read_table

CLUSTER_VARIABLE = "CLUSTERKIT_CLUSTER"


def _without_progress(context: typer.Context, as_json: bool) -> bool:
    if as_json:
        context.call_on_close(console.answer_with_json())
    return as_json


JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print one JSON document.", callback=_without_progress)
]
Verb = Callable[..., None]


def option(flags: str, help_text: str, metavar: str | None = None, **more: Any) -> Any:
    """Return what typer is told of an option with a value: `flags` such as `--node -n`."""
    return typer.Option(*flags.split(), help=help_text, metavar=metavar, show_default=False, **more)


def group(help_text: str) -> typer.Typer:
    """Return what holds the verbs below a verb."""
    return typer.Typer(
        help=help_text, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )


def with_flags(
    verb: Verb, flags: Sequence[inspect.Parameter], gather: Callable[[Mapping[str, Any]], Any]
) -> Verb:
    """Return `verb(gathered, **own)` as typer wants it: with these flags before its own.

    `gather` makes its first argument of what they said.
    """
    own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*flags, *own)]

    def command(**values: Any) -> None:
        verb(gather({flag.name: values.pop(flag.name) for flag in flags}), **values)

    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def explained(verb: Verb) -> Verb:
    """Return a verb whose parameters typer shows as `flags.tsv` beside its module has them.

    A row may be for several verbs. Parameters of which there is no row are left as they are.
    """
    table = read_table(inspect.getfile(verb), "flags.tsv")
    rows = {row["name"]: row for row in table if verb.__name__ in row["verb"].split(",")}
    own = inspect.signature(verb, eval_str=True).parameters.values()
    parameters = [_shown(p, rows[p.name]) if p.name in rows else p for p in own]
    verb.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return verb


def _shown(parameter: inspect.Parameter, row: Mapping[str, str]) -> inspect.Parameter:
    more: dict[str, Any] = {"help": row["help"], "metavar": row["metavar"] or None}
    more["show_default"] = row["default"] == "yes"
    if row["default"] not in {"", "yes"}:  # typer puts parentheses around a text of its own
        more["help"] += rf" \[default: {row['default']}]"
    if row["flags"]:
        more |= {"rich_help_panel": row["panel"] or None, "envvar": row["variable"] or None}
        more["min"] = int(row["min"]) if row.get("min") else None
        more["callback"] = _without_progress if row["flags"] == "--json" else None
        shown = typer.Option(*row["flags"].split(), **more)
    else:
        shown = typer.Argument(**more)
    return parameter.replace(annotation=Annotated[parameter.annotation, shown])
