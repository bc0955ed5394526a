"""Where the data of clusterkit lies: `templates`, `images`, `locks/core.txt`, `bench/accuracy`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clusterkit.core import peers

PEERS = "clusterkit_peers.py"
"""The name of `core/peers.py` on the nodes, beside launchers that use it."""

_PACKAGE = Path(__file__).resolve().parents[1]


def data_dir(name: str) -> Path:
    """Return the folder `name` of the wheel's data, or of the checkout in an editable install."""
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def read_data(*parts: str) -> str:
    """Return the text of a shipped file, such as `read_data("templates", "x", "y.json")`."""
    return data_dir(parts[0]).joinpath(*parts[1:]).read_text(encoding="utf-8")


def read_table(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of tab-separated values; the first names columns, `#` begins a note."""
    text = path.read_text(encoding="utf-8")
    head, *lines = (line for line in text.splitlines() if not line.startswith("#"))
    names = head.split("\t")
    yield from (dict(zip(names, line.split("\t"), strict=True)) for line in lines)


def peers_program() -> dict[str, str]:
    """Return the file by which launchers talk between nodes: clusterkit's own module, as it is."""
    return {PEERS: Path(peers.__file__).read_text(encoding="utf-8")}
