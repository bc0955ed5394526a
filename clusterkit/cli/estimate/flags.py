"""The flags of `clusterkit estimate`, from the table of its options."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from clusterkit.estimate.query.options import EstimateOptions


def takes_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb`, which takes `EstimateOptions` first, a parameter for each of them instead."""
    options = list(_parameters())
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
    ]

    def command(**values: Any) -> None:
        given = EstimateOptions(**{one.name: values.pop(one.name) for one in options})
        verb(given, **values)

    parameters = [*options, *own]
    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameters() -> Iterator[inspect.Parameter]:
    for field in dataclasses.fields(EstimateOptions):
        said = field.metadata
        option = typer.Option(
            *(said["flags"] or (f"--{field.name.replace('_', '-')}",)),
            help=said["help"],
            metavar=said["metavar"],
            rich_help_panel=said["panel"],
            show_default=False,
        )
        kinds = {"int": int | None, "float": float | None, "bool": bool}
        kind = kinds.get(str(field.type).partition(" ")[0], str | None)
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[kind, option],
        )
