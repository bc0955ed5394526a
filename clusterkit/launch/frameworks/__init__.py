"""The frameworks by name: ours are the modules of this package, others come by entry point.

A framework is one file with a module constant `FRAMEWORK`. Where scripts may name its command by
mistake, `launch/scripts/words.tsv` has to know that.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from typing import TYPE_CHECKING

from clusterkit.core.errors import UserError, choices_hint
from clusterkit.launch.frameworks.base import Framework, LaunchInputs

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Framework", "LaunchInputs", "builtin_names", "framework_names", "load_framework"]

ENTRY_POINT_GROUP = "clusterkit.frameworks"


def framework_names() -> tuple[str, ...]:
    """Return the names of all frameworks, without loading any."""
    return tuple(sorted({*builtin_names(), *_entry_points()}))


def load_framework(name: str) -> Framework:
    """Return the framework called `name`.

    Raises:
        UserError: there is none of that name, or a third party's cannot be loaded.
    """
    if name in builtin_names():
        module = importlib.import_module(f"{__name__}.{name}")
        framework: Framework = module.FRAMEWORK
        return framework
    entry_point = _entry_points().get(name)
    if entry_point is None:
        ours = next(
            (f for f in map(load_framework, builtin_names()) if name.lower() in f.starts), None
        )
        hint = f"--framework {ours.name}" if ours else choices_hint(name, framework_names())
        raise UserError(f"unknown framework {name!r}", hint=hint)
    try:
        loaded = entry_point.load()
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"framework {name!r} ({entry_point.value}) cannot be loaded: {error}",
            hint="reinstall the package that provides it",
        ) from error
    if not isinstance(loaded, Framework):
        raise UserError(f"framework {name!r} ({entry_point.value}) is not a clusterkit Framework")
    return loaded


def builtin_names() -> tuple[str, ...]:
    """Return the names of our own frameworks, without loading any."""
    return tuple(
        sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")
    )


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - loads the parser of e-mails

    found: dict[str, EntryPoint] = {}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        if entry_point.name in builtin_names():
            warnings.warn(
                f"framework {entry_point.name!r} of {entry_point.value} is ignored: "
                "clusterkit has its own of that name",
                stacklevel=2,
            )
            continue
        found[entry_point.name] = entry_point
    return found
