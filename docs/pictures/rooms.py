"""Draw the rooms of clusterkit in their layers: what each is for, and which others it imports."""

from __future__ import annotations

import ast
import textwrap
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path

from docs.pictures.flows import PAPER

_CONTRACT = "Data flows one way (docs/design.md)"
_WIDTH, _GAP, _PAD = 960, 12, 12
"""In units of the drawing, as what follows."""
_LINE, _LETTER = 18, 7.4
_STYLE = """\
text { font: 13px Helvetica, Arial, sans-serif; fill: #24292f; }
.name { font-weight: bold; font-size: 15px; }
.uses { fill: #57606a; font-style: italic; }
rect { fill: #f6f8fa; stroke: #8c959f; }"""


def draw_rooms(root: Path) -> str:
    """Return the picture as SVG: a row for each layer of `pyproject.toml`, the highest first."""
    boxes: list[str] = []
    top: float = _PAD
    for layer in layers(root):
        width = (_WIDTH - 2 * _PAD - _GAP * (len(layer) - 1)) / len(layer)
        texts = [_lines(root, room, int(width / _LETTER)) for room in layer]
        height = (max(map(len, texts)) + 1) * _LINE
        for number, lines in enumerate(texts):
            boxes += _box(_PAD + number * (width + _GAP), top, width, height, lines)
        top += height + _GAP
    size = f'viewBox="0 0 {_WIDTH} {top - _GAP + _PAD}"'
    body = "\n".join(boxes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
        f'aria-label="The rooms of clusterkit; imports point down">\n'
        f"<style>\n{_STYLE}\n{PAPER}"
        f"{body}\n</svg>\n"
    )


def layers(root: Path) -> tuple[tuple[str, ...], ...]:
    """Return the rooms of each layer, from the contract that `lint-imports` keeps."""
    with (root / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    rows = next(one["layers"] for one in contracts if one["name"] == _CONTRACT)
    return tuple(tuple(name.strip() for name in row.split(":")) for row in rows)


def imported(folder: Path) -> frozenset[str]:
    """Return the other rooms that any module below a room's folder imports."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                home, _, rest = node.module.partition(".")
                if home == "clusterkit" and rest:
                    found.add(rest.partition(".")[0])
    return frozenset(found - {folder.name})


def _lines(root: Path, room: str, letters: int) -> list[tuple[str, str]]:
    folder = root / "clusterkit" / room
    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    what = (ast.get_docstring(tree) or "").split("\n\n")[0].replace("`", "")
    order = [name for layer in layers(root) for name in layer]
    used = sorted(imported(folder), key=order.index)
    uses = f"imports {', '.join(used)}" if used else "imports no other room"
    return [
        (room, "name"),
        *((line, "what") for line in textwrap.wrap(" ".join(what.split()), letters)),
        *((line, "uses") for line in textwrap.wrap(uses, letters)),
    ]


def _box(
    left: float, top: float, width: float, height: float, lines: list[tuple[str, str]]
) -> Iterator[str]:
    yield f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="6"/>'
    for number, (text, kind) in enumerate(lines, 1):
        place = f'x="{left + _PAD:g}" y="{top + number * _LINE + 3:g}"'
        yield f'<text class="{kind}" {place}>{escape(text)}</text>'
