"""Reports as one page of HTML that loads nothing, and pictures by matplotlib (extra `plot`)."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from clusterkit.core import files
from clusterkit.core.data import data_dir
from clusterkit.core.errors import UserError
from clusterkit.core.hosts.hostlist import fold_set

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Also marks that turn the direction of writing, and halves of characters that no file can hold."""


def environment() -> jinja2.Environment:
    """Return what renders `templates/pages/`; it escapes every value."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_dir("templates/pages")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    found.filters["fold"] = fold_set
    return found


def policy(style: str, script: str = "") -> str:
    """Return a policy under which nothing is loaded, and no other script or style counts."""
    scripts = f"script-src {_digest(script)}; " if script else ""
    return (
        f"default-src 'none'; style-src {_digest(style)}; {scripts}"
        "base-uri 'none'; form-action 'none'"
    )


def _printable(value: object) -> object:
    """Replace what would not be seen, or would make other text look different."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _CONTROL.sub("\ufffd", value)
    return value


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


_FORMATS = frozenset({".png", ".svg", ".pdf"})


def require_drawing(path: Path) -> None:
    """Check that a picture can be drawn into a file of this name.

    Raises:
        UserError: matplotlib is not installed, or it knows no such format.
    """
    if path.suffix.lower() not in _FORMATS:
        raise UserError(f"cannot draw {path}", hint=f"names end in {', '.join(sorted(_FORMATS))}")
    if find_spec("matplotlib") is None:
        raise UserError("--plot needs matplotlib", hint="pip install matplotlib")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches; `require_drawing` comes before."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only who draws needs it

    return Figure(figsize=(width, height), layout="constrained")


def make_bare(axes: Any) -> None:
    """Take away the lines of the frame that tell nothing."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def write_figure(path: Path, figure: Figure) -> None:
    """Draw the figure into a file, in the format that its name ends in.

    Raises:
        UserError: the file cannot be written.
    """
    drawn = BytesIO()
    figure.savefig(drawn, dpi=150, format=path.suffix.lower().removeprefix("."))
    files.write_bytes(path, drawn.getvalue(), mode=files.output())
