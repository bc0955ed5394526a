"""What is known of each variable: `variables.tsv`, read once, when it is first asked for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache

from clusterkit.core.data import read_table
from clusterkit.core.records import row_of

NEWEST_NCCL = "2.30.7"
"""The newest release that `variables.tsv` covers."""

PREFIXES = (
    *("NCCL_", "RCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_", "UCX_", "FI_", "OFI_NCCL_"),
    *("RDMAV_", "IBV_", "HOROVOD_"),
)
_NEAR = 0.87
"""How alike (difflib's ratio) a name must be to count as misspelt: one letter in eight."""


class Kind(StrEnum):
    """What a name is."""

    DOCUMENTED = "documented"
    SOURCE_ONLY = "source-only"
    DEPRECATED = "deprecated"
    REMOVED = "removed"
    TYPO = "typo"
    PLUGIN = "plugin"
    TORCH_RENAMED = "torch-renamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One row of `variables.tsv`, whose head explains the columns."""

    name: str
    family: str
    kind: Kind
    until: str = ""
    type: str = "text"
    allowed: str = ""
    default: str = ""
    concern: str = ""
    replaced_by: str = ""
    note: str = ""
    does: str = ""
    """What it does, in a sentence; empty where `documents` of `explain` alone tells."""

    @property
    def words(self) -> tuple[str, ...]:
        """The allowed words, where the type has any."""
        return tuple(self.allowed.split(",")) if self.allowed else ()

    def concerned(self, kind: str, value: str) -> str | None:
        """Return the note of a concern that this value gives reason to; None for no reason."""
        concerns = self.concern.split(";")
        notes = self.note.split(";") if len(concerns) > 1 else [self.note]
        for one, note in zip(concerns, notes, strict=True):
            name, _, values = one.partition("=")
            listed = values.lower().split(",")
            given = value.strip().lower()
            if name == kind and f"!{given}" not in listed and {given, "*"} & {*listed}:
                return note
        return None

    def allows(self, number: int) -> bool:
        """Tell whether an int variable may have this value."""
        if not self.allowed:
            return True
        low, dots, high = self.allowed.partition("..")
        if not dots:
            return number in {int(word) for word in self.words}
        return (not low or number >= int(low)) and (not high or number <= int(high))


def find_variable(name: str) -> Variable | None:
    """Return what is known of `name`; None for an unknown one."""
    known = _table()
    if name in known:
        return known[name]
    return next((known[glob] for glob in _globs() if fnmatchcase(name, glob)), None)


def all_variables() -> tuple[Variable, ...]:
    """Return everything that is known, by name; patterns such as `UCX_*` are left out."""
    return tuple(variable for name, variable in _table().items() if "*" not in name)


def concerns_us(name: str) -> bool:
    """Tell whether the lint has a say about a variable of this name."""
    upper = name.upper()
    return upper.startswith(PREFIXES) or upper in _table() or _prefix_fixed(upper) is not None


def meant(name: str) -> str | None:
    """Return the name that a misspelt one was meant to be; None where none is near."""
    upper = name.upper()
    if upper in _readable():
        return upper
    fixed = _prefix_fixed(upper)
    if fixed is not None:
        return fixed
    near = difflib.get_close_matches(upper, _readable(), n=1, cutoff=_NEAR)
    return near[0] if near else None


def _prefix_fixed(name: str) -> str | None:
    """Return the NCCL variable that `name` is but for its prefix (`NCLL_DEBUG`)."""
    prefix, _, rest = name.partition("_")
    if not 3 <= len(prefix) <= 5 or f"NCCL_{rest}" not in _readable():
        return None
    # Libraries of others: UCCL, HCCL, MCCL, ...; Intel's, Cambricon's and Meta's.
    if re.fullmatch("[A-Z]?CCL|CNCL|NCCLX", prefix):
        return None
    alike = difflib.SequenceMatcher(None, prefix, "NCCL").ratio()
    return f"NCCL_{rest}" if alike >= 0.75 else None


@cache
def _table() -> Mapping[str, Variable]:
    return {row["name"]: row_of(Variable, row) for row in read_table(__file__, "variables.tsv")}


@cache
def _globs() -> tuple[str, ...]:
    return tuple(name for name in _table() if "*" in name)


@cache
def _readable() -> tuple[str, ...]:
    """Return the names that a library reads."""
    dead = {Kind.TYPO, Kind.REMOVED, Kind.TORCH_RENAMED}
    return tuple(
        v.name
        for v in _table().values()
        if v.kind not in dead and "*" not in v.name and v.family != "tools"
    )
