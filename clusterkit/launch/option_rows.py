"""A table of options: a dataclass whose fields have an `Option` beside their type."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

Place = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Option:
    """What a row says of an option, apart from its name, its type and its default."""

    metavar: str
    """What stands for its value in the help."""
    help: str
    example: str = ""
    """Its value in a job file; empty for what no job file says."""
    kind: str = ""
    """Its type in a job file, a name of `config.fields`; empty for `Count` and `Text`."""
    _: KW_ONLY
    short: str | None = None
    flag: str = ""
    """How the command line spells it, where that is not its name."""
    panel: str | None = "Job"
    """The part of the help that it stands in."""
    variable: bool = False
    """Whether `CLUSTERKIT_<NAME>` gives it as well."""
    argument: bool = False
    """Whether it is not a flag, but a word of the command line."""
    once: bool = False
    """Whether the command line takes it once, where Python takes several."""
    in_file: str = ""
    """What else is to be known of it in a job file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table."""

    name: str
    type: Any
    """Its type in Python."""
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        """How the command line spells it."""
        return self.option.flag or f"--{self.name.replace('_', '-')}"

    @property
    def repeated(self) -> bool:
        """Whether the command line gives it once for each of its values."""
        return self.default in {(), dataclasses.MISSING} and not self.option.once

    @property
    def plain(self) -> bool:
        """Whether the command line has its type in Python, and not a text."""
        return self.type in {bool, int | None, float | None}


def rows_of(table: type[Any]) -> Mapping[str, Row]:
    """Return the rows of a table by their names: fields of a dataclass with an `Option` each."""
    hints = typing.get_type_hints(table, include_extras=True)
    rows = {}
    for each in dataclasses.fields(table):
        kind, option = typing.get_args(hints[each.name])
        rows[each.name] = Row(name=each.name, type=kind, default=each.default, option=option)
    return rows
