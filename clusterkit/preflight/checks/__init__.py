"""The checks by id: ours are the modules of this package, others come by entry point.

A check is a function with `@check` in the file of its area; `checks.ini` explains it.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from clusterkit.core.errors import Problem, UserError, did_you_mean
from clusterkit.preflight.checks.types import Check

__all__ = ["AREAS", "Check", "all_checks", "select_checks"]

ENTRY_POINT_GROUP = "clusterkit.checks"


def all_checks(without: Collection[str] = ()) -> tuple[Check, ...]:
    """Return every check, sorted by area and number; files of areas `without` are not loaded.

    Checks of third parties in these areas are among them all the same.

    Raises:
        UserError: two have the same id or name, or a third party's is none.
    """
    found: dict[str, Check] = {}
    for check in [*_builtin(without), *_third_party()]:
        taken = found.get(check.id) or next(
            (c for c in found.values() if c.name == check.name), None
        )
        if taken is not None:
            raise UserError(f"two checks are called {taken.id} or {taken.name}")
        found[check.id] = check
    return tuple(sorted(found.values(), key=lambda check: (AREAS.index(check.area), check.id)))


def select_checks(
    checks: Sequence[Check], *, select: Sequence[str] = (), ignore: Sequence[str] = ()
) -> tuple[Check, ...]:
    """Return those of `checks` that `select` names (all, where it is empty) and `ignore` does not.

    A word is an id, a name or an area; case does not count.

    Raises:
        UserError: a word names no check; all such words at once.
    """
    unknown = [word for word in (*select, *ignore) if not any(_named(c, word) for c in checks)]
    if unknown:
        names = [name.lower() for c in checks for name in (c.id, c.name, c.area)]
        raise UserError(
            problems=[
                Problem(
                    message=f"no check or area is called {word!r}",
                    hint=did_you_mean(word, names) or _LISTED,
                )
                for word in unknown
            ]
        )
    return tuple(
        check
        for check in checks
        if (not select or any(_named(check, word) for word in select))
        and not any(_named(check, word) for word in ignore)
    )


_LISTED = "`clusterkit explain checks` lists them"
AREAS = ("SSH", "HOST", "GPU", "TOPO", "IB", "NCCL", "FS", "SLURM", "NET", "ENV")
"""HOST: the node's own system and disks; TOPO: which parts sit near which; FS: the job's folders;
NET: ports and names; ENV: variables. Each has the files of its name in this folder."""


def _named(check: Check, word: str) -> bool:
    return word.lower() in {check.id.lower(), check.name.lower(), check.area.lower()}


def _builtin(without: Collection[str]) -> list[Check]:
    names = (module.name for module in pkgutil.iter_modules(__path__))
    left = [name for name in names if name.partition("_")[0].upper() not in without]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in left]
    # A module that needs the check of another has it under the same name.
    found = {id(c): c for m in modules for c in vars(m).values() if isinstance(c, Check)}
    return [*found.values()]


def _third_party() -> list[Check]:
    if not _is_announced():
        return []
    import importlib.metadata  # noqa: PLC0415 - loads the parser of e-mails

    found = []
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            check = entry_point.load()
        except (ImportError, AttributeError) as error:
            raise UserError(
                f"check {entry_point.name!r} ({entry_point.value}) cannot be loaded: {error}",
                hint="reinstall the package that provides it",
            ) from error
        if not isinstance(check, Check) or check.area not in AREAS:
            raise UserError(
                f"check {entry_point.name!r} ({entry_point.value}) is not a clusterkit Check"
            )
        found.append(check)
    return found


def _is_announced() -> bool:
    """Tell whether the `entry_points.txt` of an installed package may name our group."""
    try:
        for entry in map(Path, sys.path):
            if entry.is_file():  # an archive, which importlib reads
                return True
            for told in entry.glob("*.*-info/entry_points.txt"):
                if ENTRY_POINT_GROUP.encode() in told.read_bytes():
                    return True
    except OSError:
        return True
    return False
