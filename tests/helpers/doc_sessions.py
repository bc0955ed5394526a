"""The commands of a tutorial, run one after the other, and what they print beside what is shown."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.doc_blocks import blocks

_MARK = "--- next command of the page ---"

_VOLATILE = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"\b(local-|train_ddp-|fails-)[0-9a-f-]+\b"), r"\1ID"),
    (re.compile(r"\S*/\.clusterkit/"), "~/.clusterkit/"),
    (re.compile(r"\b\d+:\d\d min\b"), "0 s"),  # how long the same takes where much else runs
    (re.compile(r"\d+(\.\d+)?"), "0"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of a page, and the lines shown below it."""

    command: str
    shown: tuple[str, ...]


def steps(page: Path) -> tuple[Step, ...]:
    """Return the commands behind `$` in the console blocks of a page."""
    found: list[Step] = []
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.rstrip("\n").split("\n")
            # As in a shell, a line that ends in a backslash continues.
            end = next(k for k, line in enumerate(lines, 1) if not line.endswith("\\"))
            command = "\n".join(lines[:end])
            found.append(Step(command=command, shown=tuple(lines[end:])))
    return tuple(found)


def script(page: Path) -> str:
    """Return a script of bash that runs all commands of a page as one session."""
    lines = ["last=0"]
    for step in steps(page):
        # `$?` is that of the command before, as on a terminal.
        lines += [f"echo {_MARK!r}", f"(exit $last)\n{step.command}", "last=$?"]
    return "\n".join((*lines, "exit 0"))


def differences(page: Path, run: Callable[[str], subprocess.CompletedProcess[str]]) -> list[str]:
    """Run the commands of a page; return what is shown and was not printed, in that order.

    Numbers and ids do not count, and `...` stands for any lines.
    """
    done = run(script(page))
    printed = done.stdout.split(f"{_MARK}\n")[1:]
    todo = steps(page)
    assert len(printed) == len(todo), done.stdout + done.stderr
    wrong = []
    for step, text in zip(todo, printed, strict=True):
        lines = iter([_plain(line) for line in text.splitlines()])
        for line in step.shown:
            if line != "..." and _plain(line) not in lines:
                wrong.append(f"$ {step.command}\n{line}\nis not in:\n{text}")
                break
    return wrong


def _plain(line: str) -> str:
    for pattern, instead in _VOLATILE:
        line = pattern.sub(instead, line)
    return " ".join(line.split())
