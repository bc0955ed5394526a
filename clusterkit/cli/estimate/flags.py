"""The flags of `clusterkit estimate`, from the table of its options."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated

from clusterkit.cli.frame.flags import option, with_flags
from clusterkit.estimate.query.options import EstimateOptions


def takes_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb`, which takes `EstimateOptions` first, a parameter for each of them instead."""
    return with_flags(verb, list(_parameters()), lambda said: EstimateOptions(**said))


def _parameters() -> Iterator[inspect.Parameter]:
    kinds = {"int": int | None, "float": float | None, "bool": bool}
    for field in dataclasses.fields(EstimateOptions):
        said = field.metadata
        flags = " ".join(said["flags"]) or f"--{field.name.replace('_', '-')}"
        shown = option(flags, said["help"], said["metavar"], rich_help_panel=said["panel"])
        kind = kinds.get(str(field.type).partition(" ")[0], str | None)
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[kind, shown],
        )
