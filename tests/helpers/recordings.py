"""Recordings from real machines, kept outside of the repository (see `make test`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

_DEFAULT = Path(__file__).resolve().parents[3] / "shared" / "fixtures"


def recording(name: str) -> str:
    """Return the text of one recording; skip the test where the recordings are missing."""
    path = _folder() / name
    if not path.is_file():
        _skip()
    return path.read_text(encoding="utf-8", errors="replace")


def recordings_in(name: str) -> tuple[Path, ...]:
    """Return the recordings of one folder; skip the test where there are none."""
    paths = tuple(sorted((_folder() / name).glob("*")))
    if not paths:
        _skip()
    return paths


def _folder() -> Path:
    return Path(os.environ.get("CLUSTERKIT_FIXTURES") or _DEFAULT)


def _skip() -> NoReturn:
    """Skip for one reason whichever is missing, so that pytest's summary has one line for all."""
    pytest.skip(f"recordings that are not in {_folder()}: set CLUSTERKIT_FIXTURES")
