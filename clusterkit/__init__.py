"""clusterkit: take a distributed training job from a script to every node, at full speed.

    import clusterkit

    job = clusterkit.submit("train.py", args=["--steps", 200], framework="torchrun", nodes=2)
    job.wait()

Every function is the verb of the same name (docs/how-to/python.md), but `heartbeat`, which a
training script may call (docs/how-to/hangs.md).
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from clusterkit.core.moved import know_old_names
from clusterkit.core.version import __version__ as __version__

TYPE_CHECKING = False  # typing itself takes some milliseconds, in every worker as well
if TYPE_CHECKING:
    from typing import Any

    from clusterkit.api import (
        ClusterkitWarning,
        Diagnosed,
        Estimate,
        JobHandle,
        Preflight,
        Rendered,
        diagnose,
        estimate,
        find_job,
        preflight,
        render,
        submit,
    )
    from clusterkit.core.errors import ClusterkitError, RemoteError, UserError
    from clusterkit.core.heartbeat import heartbeat

__all__ = [
    "ClusterkitError",
    "ClusterkitWarning",
    "Diagnosed",
    "Estimate",
    "JobHandle",
    "Preflight",
    "RemoteError",
    "Rendered",
    "UserError",
    "diagnose",
    "estimate",
    "find_job",
    "heartbeat",
    "preflight",
    "render",
    "submit",
]

_ERRORS = frozenset({"ClusterkitError", "RemoteError", "UserError"})


def __getattr__(name: str) -> Any:
    """Load what Python code may call when it is asked for: the command line has its own way in."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_home(name)), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def _home(name: str) -> str:
    home = "core.heartbeat" if name == "heartbeat" else "api"
    return "clusterkit.core.errors" if name in _ERRORS else f"clusterkit.{home}"


class _Verb(ModuleType):
    """A module that can be called, for a verb that has the name of a module."""

    @property
    def _function(self) -> Any:
        return getattr(importlib.import_module("clusterkit.api"), self.__name__.split(".")[-1])

    @property
    def __signature__(self) -> Any:
        return self._function.__signature__

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """What `help` shows."""
        return str(self._function.__doc__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class _Package(ModuleType):
    """This package: `clusterkit.render` is a function, whether or not the module is loaded.

    Importing a module binds its name in its package; of those that are verbs too, the module itself
    is made the function.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in __all__ and isinstance(value, ModuleType):
            value.__class__ = _Verb
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
know_old_names()
