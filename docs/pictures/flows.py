"""Draw what happens, from top to bottom, as `data/flows.tsv` tells it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path

from clusterkit.core.data import read_table

_TABLE = Path(__file__).with_name("data") / "flows.tsv"
_WIDTH, _GAP, _PAD, _ARROW = 560, 16, 12, 44
"""In units of the drawing, as what follows: narrow, since telephones show it as well."""
_LINE, _LETTER = 20, 8.2
_STYLE = """\
text { font: 15px Helvetica, Arial, sans-serif; fill: #24292f; }
.box { font-weight: bold; }
.by { font-style: italic; fill: #57606a; }
rect { fill: #f6f8fa; stroke: #8c959f; }
path { stroke: #57606a; stroke-width: 2; fill: none; }"""
PAPER = """\
.paper { fill: #fff; stroke: none; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .by, .uses { fill: #9da7b3; }
  rect { fill: #161b22; stroke: #6e7681; }
  path { stroke: #9da7b3; }
  .paper { fill: #0d1117; }
}
</style>
<rect class="paper" width="100%" height="100%"/>
"""
"""The end of the style of a drawing, and its ground, which is dark where the screen is."""


def flows() -> tuple[str, ...]:
    """Return the names of the pictures."""
    return tuple(dict.fromkeys(row["picture"] for row in read_table(_TABLE)))


def draw_flow(name: str) -> str:
    """Return the picture of this name as SVG: a row of boxes for each step."""
    rows = [row for row in read_table(_TABLE) if row["picture"] == name]
    parts: list[str] = []
    top: float = _PAD
    for _, step in groupby(rows, key=lambda row: row["step"]):
        boxes = list(step)
        if boxes[0]["by"]:
            parts += _arrow(top, boxes[0]["by"])
            top += _ARROW
        width = (_WIDTH - 2 * _PAD - _GAP * (len(boxes) - 1)) / len(boxes)
        texts = [textwrap.wrap(box["text"], int((width - 2 * _PAD) / _LETTER)) for box in boxes]
        height = (max(map(len, texts)) + 2) * _LINE
        for number, (box, lines) in enumerate(zip(boxes, texts, strict=True)):
            left = _PAD + number * (width + _GAP)
            parts.append(
                f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="6"/>'
            )
            for at, line in enumerate((box["box"], *lines), 1):
                kind = ' class="box"' if at == 1 else ""
                place = f'x="{left + _PAD:g}" y="{top + at * _LINE + 5:g}"'
                parts.append(f"<text{kind} {place}>{escape(line)}</text>")
        top += height
    told = "; ".join(dict.fromkeys(row["box"] for row in rows))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + _PAD:g}" '
        f'role="img" aria-label="{escape(told)}">\n<style>\n{_STYLE}\n{PAPER}{body}\n</svg>\n'
    )


def _arrow(top: float, by: str) -> Iterator[str]:
    yield f'<path d="M40 {top + 4:g} V{top + _ARROW - 4:g} m-6 -8 l6 8 l6 -8"/>'
    yield f'<text class="by" x="60" y="{top + _ARROW / 2 + 5:g}">{escape(by)}</text>'
