"""Read a dataclass from a row of a table, or back from JSON: no value of another type is taken.

Files of a run folder may be torn, written by another release, or by somebody who lies: what is not
whole, or beyond the bounds that fields have (see `bounds`), is missing.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any, TypeVar

from clusterkit.core.bounds import is_sane

_MOST = 1 << 31

T = TypeVar("T")


def picked(value: object, *names: str) -> dict[str, Any]:
    """Return what some attributes are, by their names."""
    return {name: getattr(value, name) for name in names}


def record_of(kind: type[T], document: Any) -> T | None:
    """Return the dataclass that a JSON object describes; None where it describes none.

    Keys that are no fields are passed over, and fields with a default may be missing.
    """
    try:
        found: T = _record(kind, document)
    except (TypeError, ValueError):
        return None
    return found


def row_of(kind: Callable[..., T], row: Mapping[str, str], **more: Any) -> T:
    """Return the dataclass that a row of a table describes, and `more`.

    Other columns do not count. Where a field may be None, `-` and an empty cell are.
    """
    known: Any = kind
    hints = ((name, hint) for name, hint in _hints(known) if name in row and name not in more)
    return kind(**{name: _cell(row[name], hint) for name, hint in hints}, **more)


def _cell(text: str, hint: Any) -> Any:
    kinds = [*typing.get_args(hint)] if isinstance(hint, types.UnionType) else [hint]
    if type(None) in kinds and text in {"", "-"}:
        return None
    return re.compile(text) if kinds[0] == re.Pattern[str] else kinds[0](text)


def count_of(document: Mapping[str, Any], key: str) -> int:
    """Return the number under `key`; 0 where there is none that counts anything."""
    value = document.get(key)
    return value if type(value) is int and 0 <= value < _MOST else 0


def text_of(document: Mapping[str, Any], key: str) -> str | None:
    """Return the text under `key`; None where there is none."""
    value = document.get(key)
    return value if isinstance(value, str) and is_sane(value) else None


def counts_of(document: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """Return the numbers of the list under `key`; none where one of them counts nothing."""
    return _all_of(document, key, lambda value: type(value) is int and 0 <= value < _MOST)


def texts_of(document: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the texts of the list under `key`; none where one of them is something else."""
    return _all_of(document, key, lambda value: isinstance(value, str) and is_sane(value))


def _all_of(document: Mapping[str, Any], key: str, known: Callable[[Any], bool]) -> tuple[Any, ...]:
    found = document.get(key)
    return tuple(found) if isinstance(found, list) and all(map(known, found)) else ()


def object_of(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object under `key`; an empty one where there is none."""
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def _record(kind: Any, document: Any) -> Any:
    if not isinstance(document, Mapping):
        raise TypeError(kind.__name__)
    hints = _hints(kind)
    values = {name: _value(document[name], hint) for name, hint in hints if name in document}
    return kind(**values)


@functools.cache
def _hints(kind: type) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(kind))


def _value(value: Any, hint: Any) -> Any:
    """Return a value as its type hint wants it.

    Raises:
        TypeError, ValueError: it is of another type, or beyond its bounds.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        found = _value(value, arguments[0])
        if not all(bound.holds(found) for bound in arguments[1:]):
            raise ValueError("beyond its bounds")
        return found
    if origin in {types.UnionType, typing.Union}:
        if value is None and type(None) in arguments:
            return None
        (kind,) = (argument for argument in arguments if argument is not type(None))
        return _value(value, kind)
    if origin is not None:
        return _collection(value, origin, arguments)
    return _single(value, hint)


def _collection(value: Any, origin: Any, arguments: tuple[Any, ...]) -> Any:
    if origin is tuple and isinstance(value, list | tuple):
        kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        return tuple(_value(item, kind) for item, kind in zip(value, kinds, strict=True))
    if origin in {Mapping, dict} and isinstance(value, Mapping):
        of_key, of_item = arguments
        return {_value(key, of_key): _value(item, of_item) for key, item in value.items()}
    raise TypeError(f"no {origin}")


def _single(value: Any, hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _record(hint, value)
    if not is_sane(value):
        raise ValueError("a number or a text without bounds")
    if type(value) is hint or (hint is float and type(value) is int):
        return value
    raise TypeError(f"no {hint}")
