"""Hold a document against its schema, and say every problem in words that fit the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from clusterkit.config.document import Document, KeyPath, Value, dotted
from clusterkit.config.fields import Room, ValueProblemError
from clusterkit.core.data import read_table
from clusterkit.core.errors import Problem, choices_hint, did_you_mean

Model = TypeVar("Model", bound=BaseModel)

_CHOICES = frozenset({"enum", "literal_error"})
_TYPES = tuple(read_table(__file__, "complaints.tsv"))

_ROUNDS = 3
"""Validators that stop at their first complaint may leave another for the next round."""


def validate(
    document: Document,
    model: type[Model],
    keys_at: Mapping[int, Iterable[str]],
    *,
    meant: Callable[[KeyPath], str | None] = lambda _: None,
) -> tuple[Model, tuple[Problem, ...]]:
    """Return what `document` says, and what is wrong with it.

    The model lacks the values that are wrong, so that more can be said of the others. `keys_at`
    lists the known keys of each depth, for "did you mean"; where `meant` has a hint about an
    unknown key, that is given instead.
    """
    data = document.data
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if not key.startswith("x-")}
    problems: list[Problem] = []
    for _ in range(_ROUNDS):
        try:
            known = model.model_validate({} if data is None else data, context=Room())
            return known, tuple(problems)
        except ValidationError as error:
            details = error.errors(include_url=False)
            problems += [_problem(document, detail, keys_at, meant) for detail in details]
            data = _without(data, {_path(detail) for detail in details})
    return model(), tuple(problems)


def _without(data: Value, paths: set[KeyPath], here: KeyPath = ()) -> Value:
    """Return `data` without the values at `paths`; a list with a bad item goes as a whole."""
    if here in paths or (
        isinstance(data, list) and any(path[: len(here)] == here for path in paths)
    ):
        return None
    if not isinstance(data, dict):
        return data
    return {
        key: _without(value, paths, (*here, key))
        for key, value in data.items()
        if (*here, key) not in paths
    }


def foreign_hint(key: str, *places: object) -> str | None:
    """Return what to write instead of a key that others have there; None where none is known.

    Places are those of `foreign_keys.tsv`: a kind of cluster, `cluster` for any, or `job`.
    """
    rows = read_table(__file__, "foreign_keys.tsv")
    known = (row["hint"] for row in rows if row["in"] in places and key in row["theirs"].split())
    return next(known, None)


def complaint(detail: ErrorDetails, name: str) -> tuple[str, str | None]:
    """Return the message and the hint for one of pydantic's errors about the value `name`."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind in _CHOICES:
        return f"{name} cannot be {shown(value)}", _one_of(value, str(context["expected"]))
    for row in _TYPES:
        if kind.startswith(row["type"]):
            requirement, bound = f"{name} must be {row['wanted']}", row["bound"]
            if bound:
                return f"{requirement} {context[bound]}, not {value}", None
            return f"{requirement}, not {shown(value)}", row["hint"] or None
    cause = context.get("error")
    if isinstance(cause, ValueError):
        return f"{name}: {cause}", cause.hint if isinstance(cause, ValueProblemError) else None
    return f"{name}: {detail['msg']}", None


def shown(value: Any) -> str:
    """Return a value as a message names it."""
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = str(value)
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _problem(
    document: Document,
    detail: ErrorDetails,
    keys_at: Mapping[int, Iterable[str]],
    meant: Callable[[KeyPath], str | None],
) -> Problem:
    path = _path(detail)
    key = dotted(path)
    if detail["type"] == "extra_forbidden":
        word, known = str(path[-1]), tuple(keys_at.get(len(path), ()))
        unknown = did_you_mean(word, known) or "`clusterkit explain config` lists the keys"
        return Problem(
            message=f"unknown key {word!r}",
            key=key,
            position=document.key_position(path),
            hint=meant(path) or (choices_hint(word, known) if len(known) <= 8 else unknown),
        )
    message, hint = complaint(detail, _name(path))
    of_key = detail["loc"][-1:] == ("[key]",)
    if of_key:
        message = message.removeprefix(f"{_name(path)}: ")
    position = document.key_position(path) if of_key else document.value_position(path)
    return Problem(message=message, key=key or None, position=position, hint=hint)


def _path(detail: ErrorDetails) -> KeyPath:
    return tuple(part for part in detail["loc"] if part != "[key]")


def _name(path: KeyPath) -> str:
    if not path:
        return "the file"
    names = [part for part in path if isinstance(part, str)]
    index = path[-1]
    if isinstance(index, int):
        return f"item {index + 1} of {names[-1]}" if names else f"item {index + 1}"
    return str(index)


def _one_of(value: Any, expected: str) -> str:
    known = [part.strip("'") for part in expected.replace(" or ", ", ").split(", ")]
    close = did_you_mean(str(value), known)
    listed = f"choose one of: {', '.join(known)}"
    return f"{close} choices: {', '.join(known)}" if close else listed
