"""Programs that scripts hold word for word. Golden files name them, and a table has their hashes.

So a change of a program is one line of the table, and golden files show what is a script's own.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from clusterkit.core.data import peers_program
from tests.helpers.paths import ROOT, TESTS

TABLE = TESTS / "golden" / "programs.sha256"
"""As `sha256sum` writes it: the hash of a file, and its name."""
_HERE_DOCUMENT = re.compile(r"(<<'(CK_\w+)'[^\n]*\n).*?^(\2\n)", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"# <embedded: (\S+)>")


@cache
def programs() -> dict[str, str]:
    """Return the files of `templates/` that are embedded as they are, the longest first."""
    found = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in (ROOT / "templates").rglob("*")
        if path.is_file() and path.suffix not in {".j2", ".pyc"}
    }
    (found["clusterkit/core/peers.py"],) = peers_program().values()
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def as_reviewed(texts: dict[str, str]) -> dict[str, str]:
    """Return rendered files as golden files hold them, with names in place of what is known.

    Only what stands there word for word is replaced by its name. What Compose runs inside the image
    is told by what differs from the node script.
    """
    reviewed = dict(texts)
    if "job.sbatch" in texts:
        node = texts["node.sh"].rstrip("\n")
        reviewed["job.sbatch"] = texts["job.sbatch"].replace(node, "# <word for word: node.sh>")
    for name, text in programs().items():
        mark, program = f"# <embedded: {name}>\n", text.rstrip("\n") + "\n"
        reviewed = {file: script.replace(program, mark) for file, script in reviewed.items()}
    if "node.sh" in texts and "compose-node.sh" in texts:
        inside = reviewed.pop("compose-node.sh").splitlines(keepends=True)
        node_lines = reviewed["node.sh"].splitlines(keepends=True)
        lines = difflib.unified_diff(node_lines, inside, "node.sh", "compose-node.sh", n=0)
        reviewed["compose-node.diff"] = "".join(lines)
    return reviewed


def golden_of(folder: Path, texts: dict[str, str]) -> dict[str, str]:
    """Return the golden files of a folder, by the names of `texts`; `make golden` writes them.

    Their own names end in `.txt`: what they name is missing in them for a linter.
    """
    if os.environ.get("CLUSTERKIT_GOLDEN") == "write":
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, text in texts.items():
            (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def without_here_documents(script: str) -> str:
    """Return a script with its quoted here-documents empty: no linter looks into them."""
    return _HERE_DOCUMENT.sub(r"\1\3", script)


def named(texts: Iterable[str]) -> set[str]:
    """Return the programs that golden files name."""
    return {name for text in texts for name in _MARK.findall(text)}


def hashes(names: set[str]) -> str:
    """Return the table of some programs."""
    text = {name: programs()[name].encode() for name in sorted(names)}
    return "".join(f"{hashlib.sha256(text[name]).hexdigest()}  {name}\n" for name in text)


def changes(table: str, now: str) -> list[str]:
    """Return a line for each program whose hash is another now, or that is new or gone."""
    before, after = (
        {line.split()[1]: line.split()[0] for line in text.splitlines()} for text in (table, now)
    )
    how = {(True, True): "changed", (True, False): "gone", (False, True): "new"}
    return [
        f"{name} is {how[name in before, name in after]}: if that was meant, make golden"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
