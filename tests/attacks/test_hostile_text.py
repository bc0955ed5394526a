"""Text of others, and text that is too long, too deep or no text: refused in one clear line."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.core.errors import UserError
from clusterkit.core.hosts.hostlist import expand
from clusterkit.core.text import NOT_IN_A_LINE
from clusterkit.launch.render import FILTERS, UnquotedError
from tests.attacks.in_process import Cli, cli

__all__ = ["cli"]  # a fixture

_ONE_LINE = st.text(
    st.characters(codec="utf-8").filter(lambda character: not NOT_IN_A_LINE.match(character))
)


def slurm_reads(line: str) -> Iterator[str]:
    """Yield the arguments that sbatch takes from a `#SBATCH` line; the rules of Slurm's opt.c.

    Raises:
        ValueError: sbatch ends, because a quote is not closed.
    """
    rest = line.removeprefix("#SBATCH").split("\0", 1)[0]
    while rest := rest.lstrip(" \t\n\v\f\r"):
        argument, quote, at = "", "", 0
        while at < len(rest) and (quote or rest[at] not in " \t\v\f\r") and rest[at] != "\n":
            character = rest[at]
            at += 1
            if character == "\\":
                argument += rest[at : at + 1]
                at += 1
            elif quote:
                quote, argument = (
                    ("", argument) if character == quote else (quote, argument + character)
                )
            elif character in "\"'":
                quote = character
            elif character == "#":
                at = len(rest)
            else:
                argument += character
        if quote:
            raise ValueError("unmatched quote")
        if argument:
            yield argument
        rest = rest[at:]


@given(_ONE_LINE)
def test_slurm_reads_from_a_directive_what_was_given(value: str) -> None:
    line = f"#SBATCH --comment={FILTERS['directive'](value)}"
    assert "\n" not in line
    assert list(slurm_reads(line)) == [f"--comment={value}"]


@pytest.mark.parametrize(
    "value",
    [
        'x\\" --begin=now+10days "',
        'x\\" --wrap=id #',
        "x\\",
        "x' --uid=0 '",
        "a # b",
        "\\\\",
        '"',
        "-x --hold",
        "%j %x %%",
        "$(id) `id` ${HOME}",
    ],
)
def test_no_value_adds_an_option(value: str) -> None:
    line = f"#SBATCH --comment={FILTERS['directive'](value)}"
    assert list(slurm_reads(line)) == [f"--comment={value}"]


@pytest.mark.parametrize("character", ["\n", "\r", "\0", "\x85", "\u2028", "\x1b", "\ud800"])
def test_no_directive_holds_what_ends_a_line(character: str) -> None:
    with pytest.raises(UnquotedError, match="cannot stand in a directive"):
        FILTERS["directive"](f"a{character}#SBATCH --hold")


# --- what a user may type by mistake, or be handed by another ---


@pytest.mark.parametrize(
    "text",
    ["(" * 100_000 + ")" * 100_000, "x=" + "-" * 200_000 + "1\n", "x=" + "a." * 50_000 + "b\n"],
)
def test_a_deeply_nested_script_is_left_to_python(cli: Cli, text: str) -> None:
    Path("train.py").write_text(text)
    code, _, err = cli("render", "--framework", "torchrun", "--output", "out", "train.py")
    assert code == 0, err
    assert "error" not in err


@pytest.mark.parametrize(
    "words",
    [
        ("status", "a" * 5000),
        ("logs", "a" * 300),
        ("cancel", "a" * 5000),
        ("wait", "a" * 300),
        ("diagnose", "a" * 5000),
        ("estimate", "--model", "a" * 5000, "--gpu", "A100", "--gpus", "8"),
        ("hostfile", "a" * 5000, "--format", "names"),
        ("lint-env", "a" * 5000),
        ("topo", "a" * 5000),
        ("render", "--framework", "torchrun", "--output", "a/" * 3000, "train.py"),
    ],
    ids=lambda words: words[0],
)
def test_a_name_that_is_too_long_is_refused(cli: Cli, words: tuple[str, ...]) -> None:
    Path("train.py").write_text("print(1)\n")
    code, _, err = cli(*words)
    assert (code, "bug" in err) == (2, False), err
    assert "error: " in err


@pytest.mark.parametrize(
    "words",
    [
        ("--nodes", "1" + "0" * 30),
        ("--nodes", "9" * 5000),
        ("--nodes", "70000"),
        ("--gpus-per-node", "9" * 5000),
        ("--gpus-per-node", "1" + "0" * 30),
        ("--requeue", "1" + "0" * 30),
        ("--array", "a=1-999999999;b=1-999999999"),
        ("--env", "A=" + "x" * 10_000_000),
    ],
    ids=lambda words: f"{words[0]} {words[1][:8]}",
)
def test_a_huge_number_is_refused(cli: Cli, words: tuple[str, ...]) -> None:
    Path("train.py").write_text("print(1)\n")
    code, _, err = cli("submit", "--dry-run", "--framework", "torchrun", *words, "train.py")
    assert (code, "bug" in err) == (2, False), err[:500]
    assert words[0] in err or "the value of A is too long" in err
    assert len(err) < 2000


@pytest.mark.parametrize(
    "text", ["n[1-999999999]", "n[1-9][1-9999][1-9]", "n" + "[1]" * 300_000, "n[" + "1," * 500_000]
)
def test_a_hostlist_bomb_is_refused_at_once(text: str) -> None:
    begun = time.thread_time()
    with pytest.raises(UserError):
        expand(text)
    assert time.thread_time() - begun < 3


def test_what_the_user_may_not_read_is_no_bug(cli: Cli) -> None:
    us = os.geteuid()
    Path("train.py").write_text("print(1)\n")
    Path("train.py").chmod(0)
    for words in (("lint-env", "train.py"), ("diagnose", "train.py"), ("topo", "train.py")):
        cli(*words)  # everything is imported before what holds it cannot be read
        if us == 0:  # who may read everything
            os.seteuid(65534)
        try:
            code, _, err = cli(*words)
        finally:
            os.seteuid(us)
        assert (code, "bug" in err) == (2, False), err
        assert "ermission denied" in err
