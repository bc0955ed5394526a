"""Where the data of clusterkit lies: `templates`, `images`, `locks/core.txt`, `bench/accuracy`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from clusterkit.core.errors import Problem

PEERS = "clusterkit_peers.py"
"""The name of `core/peers.py` on the nodes, beside launchers that use it."""

_ON_NODES = {
    "horovod_elastic.py": "elastic.py",
    "ranks_sitecustomize.py": "sitecustomize.py",
    "ray_sitecustomize.py": "sitecustomize.py",
    "spark_launch.py": "launch.py",
    "torchrun_elastic.py": "elastic.py",
}
"""Files that nodes know by a name that those of several frameworks have."""

_PACKAGE = Path(__file__).resolve().parents[1]


def data_dir(name: str) -> Path:
    """Return the folder `name` of the wheel's data, or of the checkout in an editable install."""
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def read_template(path: str) -> str:
    """Return the text of a file of `templates/`, such as `pages/scaling.css`."""
    return (data_dir("templates") / path).read_text(encoding="utf-8")


def read_program(path: str) -> str:
    """Return a file of `templates/` for `python -c`, which imports nothing from the working folder.

    That may be a stranger's. The user's own packages count, so it is not -I; -P is of Python 3.11.
    """
    return f"import sys\nsys.path = [place for place in sys.path if place]\n{read_template(path)}"


def read_snippet(name: str, **marks: str) -> str:
    """Return a program of `programs/probes` in sh, without comments, and `marks` in place of @...@.

    What is put in place of a mark is not looked at again.
    """
    text = re.sub(r"(?m)^#.*\n", "", read_template(f"programs/probes/{name}.sh"))
    return re.sub(r"@([A-Z]+)@", lambda mark: marks[mark[1].lower()], text)


def read_table(file: str | Path, beside: str | None = None) -> Iterator[dict[str, str]]:
    """Yield the rows of tab-separated values; the first names columns, `#` begins a note.

    They are those of a file, or of the one called `beside` in its folder.
    """
    path = Path(file) if beside is None else Path(file).with_name(beside)
    text = path.read_text(encoding="utf-8")
    head, *lines = (line for line in text.splitlines() if not line.startswith("#"))
    names = head.split("\t")
    yield from (dict(zip(names, line.split("\t"), strict=True)) for line in lines)


def read_problem(file: str, table: str, name: str, /, *values: object, **more: object) -> Problem:
    """Return a problem of a table by its id, with values in its message, its hint and its key."""
    row = _problems(file, table)[name]
    texts = {part: row.get(part, "").format(*values, **more) for part in ("message", "hint", "key")}
    return Problem(message=texts["message"], hint=texts["hint"] or None, key=texts["key"] or None)


@cache
def _problems(file: str, table: str) -> Mapping[str, Mapping[str, str]]:
    return {row["id"]: row for row in read_table(file, table)}


def framework_files(framework: str, *names: str) -> dict[str, str]:
    """Return files of `templates/frameworks/FRAMEWORK`, as `node_files()`."""
    return node_files(f"frameworks/{framework}", *names)


def node_files(folder: str, *names: str) -> dict[str, str]:
    """Return files of a folder of `templates/`, under the names that they have on nodes."""
    return {_ON_NODES.get(name, name): read_template(f"{folder}/{name}") for name in names}


def peers_program() -> dict[str, str]:
    """Return the file by which launchers talk between nodes: clusterkit's own module, as it is."""
    return {PEERS: (_PACKAGE / "core" / "peers.py").read_text(encoding="utf-8")}
