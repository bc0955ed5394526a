"""What is shown of long work: a line that moves on a terminal, lines now and then, or nothing."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios

import pytest

from clusterkit.cli.frame import console

WORK = """\
from concurrent.futures import ThreadPoolExecutor
from clusterkit.cli.frame import console
with console.progress(quiet={quiet}) as show:
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda n: show(f"[bold]{{n}} of 3\\x1b[31m"), range(3)))
console.say("done")
"""


def on_a_terminal(quiet: bool) -> str:
    return shown_by(WORK.format(quiet=quiet))


def shown_by(program: str, *, out: str = "done\n") -> str:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    argv = [sys.executable, "-c", program]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True, check=True
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # all has been read
        pass
    os.close(ours)
    assert out in done.stdout
    return shown.decode()


def test_on_a_terminal_it_is_one_line_with_texts_as_they_are() -> None:
    shown = on_a_terminal(quiet=False)
    assert shown.count("\x1b[?25l") == 1, "the cursor is hidden once, whoever else tells"
    assert "[bold]" in shown
    assert "of 3" in shown
    assert "\x1b[31m" not in shown, "control characters of texts stay away"
    assert shown.rstrip().endswith("\x1b[2K"), "and it is gone at the end"
    assert on_a_terminal(quiet=True) == ""


@pytest.mark.parametrize("words", [("--verbose",), ("--json",)], ids=" ".join)
def test_preflight_shows_on_a_terminal_how_far_it_is_but_not_beside_a_document(
    words: tuple[str, ...],
) -> None:
    argv = ["clusterkit", "preflight", "--via", "local", "--select", "HOST002", *words]
    program = f"import sys; sys.argv = {argv}; from clusterkit.cli.frame.main import main; main()"
    shown = shown_by(program, out="HOST002")
    assert ("1 of 1 nodes have answered" in shown) is (words != ("--json",)), shown


def test_in_a_pipe_it_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for every_s, lines in ((0.0, "1 of 2 read\n2 of 2 read\n"), (60.0, "")):
        monkeypatch.setattr(console, "_PLAIN_EVERY_S", every_s)
        with console.counting(2, "read") as counted:
            counted(None)
            counted(None)
        assert capsys.readouterr().err == lines
    monkeypatch.setattr(console, "_PLAIN_EVERY_S", 0.0)
    with console.progress(plain=False) as show:
        show("no log wants it")
    assert capsys.readouterr() == ("", "")


LONG = """\
from clusterkit.cli.frame import console
console.error("the connection to the login node broke in the middle of what it had to tell\\n"
    "  --> a line that quotes what stands in a file may be as long as that file has made it\\n"
    "hint: jobs there go on; to take up the output again: clusterkit logs latest --follow")
console.error("/shared/" + "project/" * 9 + "submission.json: is not one of ours")
console.say("done")
"""


def test_on_a_terminal_sentences_keep_to_the_columns_and_commands_to_a_line() -> None:
    lines = shown_by(LONG).replace("\r", "").splitlines()
    assert lines[0].endswith(
        "the connection to the login node broke in the middle of what it had to"
    )
    assert lines[1:5] == [
        "       tell",
        "  --> a line that quotes what stands in a file may be as long as that file has made it",
        "hint: jobs there go on; to take up the output again:",
        "      clusterkit logs latest --follow",
    ]
    assert lines[5].endswith(f"/shared/{'project/' * 9}submission.json:")
    assert lines[6:] == ["       is not one of ours"]
