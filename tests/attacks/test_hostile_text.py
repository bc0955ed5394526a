"""Text of others, and text that is too long, too deep or no text: refused in one clear line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.escapes import NOT_IN_A_LINE
from clusterkit.templating import FILTERS, UnquotedError

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
