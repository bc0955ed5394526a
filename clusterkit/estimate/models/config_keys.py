"""Read values from a `config.json`: many names for one thing, every problem found at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterkit.core.data import read_table
from clusterkit.core.errors import Problem, UserError

LARGEST = 10**8
"""No width, count or vocabulary is larger: the file means something else, then."""
MOST_LAYERS = 10**4

_OTHERS = {
    row["key"]: row["others"].split()
    for row in read_table(Path(__file__).with_name("config_keys.tsv"))
}


def names_of(key: str) -> tuple[str, ...]:
    """Return all names of a value, `key` first."""
    return (key, *_OTHERS.get(key, ()))


class Config:
    """The values of a document; what is wrong with them is collected, not raised."""

    def __init__(self, document: Mapping[str, Any], *, source: str) -> None:
        """Read from `document`, which was found at `source`."""
        self._document = document
        self._source = source
        self._problems: list[Problem] = []

    def whole(self, *names: str, most: int = LARGEST) -> int | None:
        """Return the first of these keys that is there, a positive whole number."""
        found = self.value(*names)
        if found is None:
            return None
        name, value = found
        number = _whole(value)
        if number is None or not 0 < number <= most:
            hint = f"it has to be a whole number from 1 to {most}"
            self.refuse(f"{name} is {value!r}", hint, key=name)
            return None
        return number

    def count(self, *names: str) -> int:
        """Return such a number, of something that may be absent: 0 then."""
        found = self.value(*names)
        return 0 if found is None or found[1] == 0 else self.whole(*names) or 0

    def needed(self, *names: str, most: int = LARGEST) -> int:
        """Return such a number that nothing can stand in for; 1 where it is missing."""
        if self.value(*names) is None:
            first, *others = names_of(names[0])
            either = f" (or {', '.join(others[:3])})" if others else ""
            hint = f"add {first}{either}, or name a preset: `clusterkit estimate --model NAME`"
            problem = Problem(message=f"{self._source} has no {first}", hint=hint)
            self._problems.append(problem)
        return self.whole(*names, most=most) or 1

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return the first of these keys that is there, true or false."""
        found = self.value(*names)
        if found is None:
            return default
        name, value = found
        if not isinstance(value, bool):
            self.refuse(f"{name} is {value!r}", "it has to be true or false", key=name)
            return default
        return value

    def value(self, *names: str) -> tuple[str, Any] | None:
        """Return the first of these keys that is there and not null, by any of its names."""
        for name in (name for key in names for name in names_of(key)):
            if self._document.get(name) is not None:
                return name, self._document[name]
        return None

    def part(self, name: str) -> Config:
        """Return the object under this key; an empty one where there is none."""
        value = self._document.get(name)
        inner = Config(value if isinstance(value, Mapping) else {}, source=self._source)
        inner._problems = self._problems
        return inner

    def refuse(self, message: str, hint: str, *, key: str) -> None:
        """Note that a value cannot be used."""
        self._problems.append(Problem(message=f"{message} in {self._source}", hint=hint, key=key))

    def check(self) -> None:
        """Raise what was found, if anything was.

        Raises:
            UserError: values are missing or cannot be.
        """
        if self._problems:
            raise UserError(problems=tuple(dict.fromkeys(self._problems)))


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None
