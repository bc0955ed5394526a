"""What all pictures have in common: matplotlib (the extra `plot`), the formats, plain axes."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterkit.core import files
from clusterkit.core.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
