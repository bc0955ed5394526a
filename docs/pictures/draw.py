"""Draw what a command leaves on a terminal of its own, the order of the code, and what happens."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from docs.pictures.flows import draw_flow, flows
from docs.pictures.rooms import draw_rooms

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
WIDTH = 80

_MODEL = ("--model", "llama-3.1-8b")
PICTURES: Mapping[str, Sequence[str]] = {
    "preflight": ("preflight", "--replay", "rack"),
    "diagnose": ("diagnose", "failed.log"),
    "topo": ("topo", "topo.txt"),
    "lint-env": ("lint-env", "train.sbatch"),
    "estimate": ("estimate", *_MODEL, "--gpu", "h100", "--gpus", "64", "--scale"),
    "rooms": (),
    **dict.fromkeys(flows(), ()),
}
"""Arguments of `clusterkit`, by the name of the picture; run in `data/`. Drawings have none."""

_NORMAL = "484f58 ff7b72 3fb950 d29922 58a6ff bc8cff 39c5cf b1bac4"
_BRIGHT = "6e7681 ffa198 56d364 e3b341 79c0ff d2a8ff 56d4dd f0f6fc"


def _colours(words: str) -> list[tuple[int, int, int]]:
    parts = (bytes.fromhex(word) for word in words.split())
    return [(part[0], part[1], part[2]) for part in parts]


# rich's own form names a font of the web, and has a window around the text.
_FORM = """\
<svg xmlns="http://www.w3.org/2000/svg" class="rich-terminal" viewBox="0 0 {width} {height}">
<style>
{styles}
.{unique_id}-matrix {{
font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace;
font-size: {char_height}px;
line-height: {line_height}px;
font-variant-east-asian: full-width;
}}
</style>
<defs>
{lines}
</defs>
<rect width="{width}" height="{height}" rx="8" fill="#161b22"/>
<g transform="translate(12, 12)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def _theme() -> TerminalTheme:
    background, foreground = _colours("161b22 c9d1d9")
    return TerminalTheme(background, foreground, _colours(_NORMAL), _colours(_BRIGHT))


def draw(name: str) -> str:
    """Return the picture of this name as SVG."""
    words = PICTURES[name]
    if not words:
        return draw_rooms(ROOT) if name == "rooms" else draw_flow(name)
    console = Console(width=WIDTH, record=True, file=io.StringIO(), color_system="truecolor")
    typed = " ".join(("clusterkit", *words))
    console.print(Text.assemble(("$ ", "green"), (typed, "bold")))
    console.print(Text.from_ansi(printed(words)), soft_wrap=True)
    drawn = console.export_svg(
        title="", theme=_theme(), code_format=_FORM, unique_id=f"clusterkit-{name}"
    )
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def printed(words: Sequence[str]) -> str:
    """Return what clusterkit prints on a terminal of 80 columns, with its colours.

    Raises:
        RuntimeError: it could not do it.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("CLUSTERKIT_") and name != "NO_COLOR"
    }
    with tempfile.TemporaryDirectory() as home, _terminal() as (ours, theirs):
        done = subprocess.Popen(
            [sys.executable, "-m", "clusterkit", *words],
            cwd=FOLDER / "data",
            env={
                **kept,
                "COLUMNS": str(WIDTH),
                "HOME": home,
                "PYTHONPATH": str(ROOT),
                "TERM": "xterm-256color",
                "XDG_CONFIG_HOME": home,
            },
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        text = _read(ours)
        if done.wait() > 1:  # 1: it found something
            raise RuntimeError(f"clusterkit {' '.join(words)}: {text}")
    return text.replace("\r\n", "\n").rstrip("\n")


@contextlib.contextmanager
def _terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, WIDTH, 0, 0))
    try:
        yield ours, theirs
    finally:
        os.close(ours)


def _read(ours: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says EIO when the other end is closed
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode()
