"""What the functions take, as data: each list of arguments stands once.

A function that is decorated with `takes(Words)` has the arguments of the dataclass `Words`, for
type checkers, `help()` and the completion of a notebook alike.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ParamSpec, TypeVar

from clusterkit.launch.jobfile import checked_values

P = ParamSpec("P")
W = TypeVar("W")
R = TypeVar("R")


def takes(words: Callable[P, W]) -> Callable[[Callable[[W], R]], Callable[P, R]]:
    """Give a function of one `Words` the arguments from which a `Words` is made."""

    def decorate(function: Callable[[W], R]) -> Callable[P, R]:
        answer = inspect.signature(function).return_annotation
        signature = inspect.signature(words).replace(return_annotation=answer)

        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            return function(words(*args, **kwargs))

        called.__name__ = called.__qualname__ = function.__name__
        called.__doc__, called.__module__ = function.__doc__, function.__module__
        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__annotations__ = {}  # some readers would take those above for the signature's
        return called

    return decorate


@dataclass(frozen=True, slots=True)
class JobWords:
    """A job as arguments say it; they are the flags of `clusterkit submit`, and beat a job file."""

    script: str | os.PathLike[str] | None = None
    """The training script."""
    args: Sequence[object] = ()
    """Its arguments."""
    _: KW_ONLY
    cluster: str | None = None
    framework: str | None = None
    nodes: int | str | None = None
    """How many, or `MIN:MAX`."""
    gpus_per_node: int | Sequence[int] | None = None
    processes: int | None = None
    time: str | None = None
    name: str | None = None
    env: Mapping[str, object] = field(default_factory=dict)
    secret: Sequence[str] = ()
    """Names of variables that are passed on and never written down."""
    exclude: str | None = None
    """A hostlist."""
    sync: str | os.PathLike[str] | None = None
    sync_limit: int | None = None
    set: Mapping[str, object] = field(default_factory=dict)
    """`sbatch.KEY` and `FRAMEWORK.KEY`."""
    ds_preset: str | None = None
    ps: int | None = None
    requeue: int | None = None
    spares: int | None = None
    image: str | None = None
    container: str | None = None
    mount: Sequence[str] = ()
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    topology: str | os.PathLike[str] | None = None
    job: str | os.PathLike[str] | None = None
    """A job file."""

    def given(self) -> Mapping[str, Any]:
        """Return the values that were given, as a job file would hold them.

        Raises:
            UserError: some are none; all of them at once.
        """
        names = [name.name for name in dataclasses.fields(JobWords) if name.name != "job"]
        values = {name: getattr(self, name) for name in names}
        given = {name: value for name, value in values.items() if value not in (None, (), {}, [])}
        return checked_values({name: as_text(value) for name, value in given.items()})


@dataclass(frozen=True, slots=True)
class SubmitWords(JobWords):
    """A job, and how it is to be submitted."""

    _: KW_ONLY
    preflight: str | None = None
    """auto, full or off."""
    exclude_unfit: bool = False
    force: bool = False
    after: str | Sequence[str] = ()
    """Jobs that come first, as `JOB[:ok|any|fail]`."""


@dataclass(frozen=True, slots=True)
class RenderWords(JobWords):
    """A job, and which of its files to render."""

    _: KW_ONLY
    only: str | Sequence[str] = ()


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
