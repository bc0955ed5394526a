"""What the functions have in common: arguments, warnings, and results as a notebook shows them."""

from __future__ import annotations

import dataclasses
import html
import inspect
import os
import re
import textwrap
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ParamSpec, TypeVar

from clusterkit.launch.jobfile import checked_values
from clusterkit.launch.option_rows import Option, rows_of
from clusterkit.launch.options import JobOptions, job_options

P = ParamSpec("P")
W = TypeVar("W")
R = TypeVar("R")


def takes(make_options: Callable[P, W]) -> Callable[[Callable[[W], R]], Callable[P, R]]:
    """Give a function of one `Words` the arguments from which a `Words` is made.

    Its docstring describes them by the help of the flags, between its own text and `Raises:`.
    """

    def decorate(function: Callable[[W], R]) -> Callable[P, R]:
        hints = typing.get_type_hints(make_options)
        signature = inspect.signature(make_options)
        signature = signature.replace(
            parameters=[p.replace(annotation=hints[p.name]) for p in signature.parameters.values()],
            return_annotation=inspect.signature(function).return_annotation,
        )

        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            return function(make_options(*args, **kwargs))

        called.__name__ = called.__qualname__ = function.__name__
        called.__doc__ = _with_arguments(function.__doc__ or "", make_options)
        called.__module__ = function.__module__
        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__annotations__ = {}  # some readers would take those above for the signature's
        return called

    return decorate


def _with_arguments(text: str, table: Any) -> str:
    about, raises, errors = inspect.cleandoc(text).partition("\nRaises:")
    listed = job_options() if issubclass(table, JobOptions) else {}  # it names the frameworks
    described = (
        textwrap.fill(
            f"{name}: {_REPEATED.sub('', listed.get(name, row).option.help)}",
            width=88,
            initial_indent=" " * 4,
            subsequent_indent=" " * 8,
            break_on_hyphens=False,
        )
        for name, row in rows_of(table).items()
    )
    return "\n".join((f"{about}\nArgs:", *described, f"{raises}{errors}"))


_REPEATED = re.compile("[;,] repeatable(?=[.,])")
"""What only the command line has to know of its flags."""


@dataclasses.dataclass(frozen=True, slots=True)
class RenderOptions(JobOptions):
    """A job, and which of its files to render."""

    _: dataclasses.KW_ONLY
    only: Annotated[
        str | Sequence[str],
        Option("KIND", "Kinds of files, instead of all: sbatch, hostfile, compose, node, config."),
    ] = ()
    service: Annotated[
        str | None,
        Option(
            "NAME",
            "Managed service that runs the node script: sagemaker, vertex, azureml, runpod or "
            "kubernetes.",
        ),
    ] = None


def given(options: JobOptions) -> Mapping[str, Any]:
    """Return the values of a job that were given, as a job file would hold them.

    Raises:
        UserError: some are none; all of them at once.
    """
    names = [each.name for each in dataclasses.fields(JobOptions) if each.name != "job"]
    values = {name: getattr(options, name) for name in names}
    provided = {name: value for name, value in values.items() if value not in (None, (), {}, [])}
    return checked_values({name: as_text(value) for name, value in provided.items()})


def several(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return what is one text, or some."""
    return (value,) if isinstance(value, str) else tuple(value)


def as_text(value: Any) -> Any:
    """Return a value as a YAML file would give it: texts, in lists and mappings."""
    if isinstance(value, Mapping):
        return {str(key): as_text(item) for key, item in value.items()}
    if isinstance(value, str | os.PathLike) or not isinstance(value, Sequence):
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    return [as_text(item) for item in value]


class ClusterkitWarning(UserWarning):
    """What the command line would print on stderr, beside the answer."""


def warn(text: str) -> None:
    """Warn whoever called into clusterkit."""
    warnings.warn(text, ClusterkitWarning, stacklevel=_outside())


def html_table(rows: Iterable[tuple[str, object]]) -> str:
    """Return two columns, the first one bold."""
    style = "style='text-align:left'"
    cells = (
        f"<tr><th {style}>{html.escape(name)}</th><td {style}>{html.escape(str(text))}</td></tr>"
        for name, text in rows
    )
    return f"<table>{''.join(cells)}</table>"


def _outside() -> int:
    """Return the level of the caller's first frame that is none of ours, as `warnings` counts."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith("clusterkit."):
        frame, level = frame.f_back, level + 1
    return max(level, 1)
