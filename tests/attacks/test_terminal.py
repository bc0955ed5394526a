"""What others wrote reaches a terminal as text alone: no control character of theirs does."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusterkit.core.text import harmless
from tests.helpers.desk import read_to_end

PAYLOADS = {
    "title": "\x1b]0;owned\x07",
    "clear": "\x1b[2J\x1b[H",
    "c1": "\x9b2J\x9d0;owned\x9c",
    "unended": "\x1b]52;c;bWFsd2FyZQ==",
    "conceal": "\x1b[8m",
    "carriage": "\rpass  all nodes",
    "backspace": "\b" * 20,
    "bidi": "\u202e\u2066\u202a",
    "separators": "\u2028\u2029\x85\x0b\x0c",
    "tags": "\U000e0041\ufeff\u200b",
    "mark": "\x1b\U000f0000\U000f0000[31m",
    "nul": "\x00\x7f\x8d",
}
FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u2069\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(argv: list[str], cwd: Path) -> str:
    """Run a command whose stdout and stderr are a terminal; return all that reached it."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        argv, cwd=cwd, stdin=slave, stdout=slave, stderr=slave, close_fds=True
    )
    os.close(slave)
    said = read_to_end(master)
    process.wait(timeout=120)
    return said.decode(errors="surrogateescape").replace("\r\n", "\n")


@pytest.mark.parametrize("verb", ["say", "note", "warn", "error", "bold"])
def test_the_printer_lets_no_control_character_through(verb: str) -> None:
    words = {"bold": "console.say(console.bold(text))"}.get(verb, f"console.{verb}(text)")
    program = (
        "from clusterkit.cli.frame import console\n"
        f"for payload in {list(PAYLOADS.values())!r}:\n    text = 'a' + payload + 'b'; {words}\n"
    )
    tty = on_terminal([sys.executable, "-c", program], Path("/"))
    assert "\x1b[8m" not in tty
    assert "\x1b[31ma" not in tty
    lines = COLOUR.sub("", tty).splitlines()
    assert len(lines) == len(PAYLOADS)
    for line in lines:
        assert line.removeprefix("warning: ").removeprefix("error: ")[:1] == "a"
        assert line[-1] == "b", "what follows the payload is still there"
        assert "\x1b" not in line
        assert "\r" not in line
        assert not FORBIDDEN.search(line)


def test_an_evidence_of_a_log_does_not_colour_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    line = "RuntimeError: CUDA error: out of memory"
    log.write_text("".join(f"{line}{payload}\n" for payload in PAYLOADS.values()))
    for flags in ((), ("--json",)):
        argv = [sys.executable, "-m", "clusterkit", "diagnose", str(log), *flags]
        rest = COLOUR.sub("", on_terminal(argv, tmp_path))
        assert "out of memory" in rest
        assert "\x1b" not in rest
        assert not FORBIDDEN.search(rest)


def test_json_is_ascii_and_valid_whatever_is_in_it() -> None:
    program = (
        "from clusterkit.cli.frame import console; console.json_document("
        "{'names': ['\\ud800\\x1b[2J\\u202e\\u2028', {'\\udfff': float('inf')}, 'ü\\U0001f600']})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.isascii()
    names = json.loads(done.stdout)["names"]
    assert names == ["\ufffd\x1b[2J\u202e\u2028", {"\ufffd": None}, "ü\U0001f600"]
    json.dumps(names, ensure_ascii=False).encode()


def test_harmless_keeps_what_people_write() -> None:
    for text in ("ok\n\tüber 日本語 😀 שלום", "n[1-7,9]  pass", ""):
        assert harmless(text) == text
