"""The virtual environment of a framework, and a desk whose jobs run in it."""

from __future__ import annotations

from pathlib import Path

from tests.desk import CHECKOUT, CONFIG, Desk
from tests.lab.lab import Lab


def python_of(name: str) -> Path:
    """Return the interpreter of the environment that NAME.txt beside this file describes."""
    python = CHECKOUT / ".venvs" / name / "bin" / "python"
    assert python.exists(), f"{python} is missing: make .venvs/{name}.done"
    return python


def desk_of(lab: Lab, name: str, environment: str) -> Desk:
    """Return a desk on the practice cluster whose jobs run in a framework's environment."""
    desk = Desk.of(lab, name)
    text = CONFIG.format(python=python_of(environment))
    (desk.folder / "clusterkit.yaml").write_text(text)
    return desk
