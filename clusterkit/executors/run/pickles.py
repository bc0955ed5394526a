"""Pickles, which are programs: written for nobody else, and read only where nobody else wrote.

submitit would write them as the umask has it, and read what is there.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from submitit.core import utils

from clusterkit.core import ownership, permissions

_USE = "unpickle it: that runs what it says"


class DelayedSubmission(utils.DelayedSubmission):
    """A call on its way to a node; submitit knows its class by this name."""

    def dump(self, filepath: str | Path) -> None:
        """Write it, readable by the owner only."""
        dump_private(self, filepath)


def kept_private(calls: Iterable[utils.DelayedSubmission]) -> list[utils.DelayedSubmission]:
    """Return calls that are written for nobody else."""
    found = list(calls)
    for call in found:
        call.__class__ = DelayedSubmission
    return found


def dump_private(obj: Any, filename: str | Path) -> None:
    """Pickle a value into a file that is new, readable by the owner only."""
    with os.fdopen(permissions.open_new(Path(filename), permissions.PRIVATE), "wb") as stream:
        cloudpickle.dump(obj, stream, pickle.HIGHEST_PROTOCOL)


def load_own(filename: str | Path) -> Any:
    """Return the value in a pickle.

    Raises:
        UserError: somebody else can write the file, or its folder.
        OSError: it cannot be read.
    """
    path = Path(filename)
    ownership.require_own(path.parent, use=_USE)
    with (
        ownership.open_own(path, use=_USE) as descriptor,
        os.fdopen(os.dup(descriptor), "rb") as stream,
    ):
        return pickle.load(stream)  # noqa: S301 - nobody else has written it
