"""Recordings from real machines, kept outside of the repository (see `make test`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_DEFAULT = Path(__file__).resolve().parents[3] / "shared" / "fixtures"


def recording(name: str) -> str:
    """Return the text of one recording; skip the test where the recordings are not there."""
    folder = Path(os.environ.get("CLUSTERKIT_FIXTURES") or _DEFAULT)
    path = folder / name
    if not path.is_file():
        pytest.skip(f"no recording {name} in {folder}: set CLUSTERKIT_FIXTURES")
    return path.read_text(encoding="utf-8", errors="replace")


def recordings_in(name: str) -> tuple[Path, ...]:
    """Return the recordings of one folder; skip the test where there are none."""
    folder = Path(os.environ.get("CLUSTERKIT_FIXTURES") or _DEFAULT) / name
    paths = tuple(sorted(folder.glob("*")))
    if not paths:
        pytest.skip(f"no recordings in {folder}: set CLUSTERKIT_FIXTURES")
    return paths
