"""Values that are read as something else than what they look like."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterkit.core.findings import Verdict
from clusterkit.preflight.env_lint.rules.base import Remark, Rule, items, strtoll
from clusterkit.preflight.env_lint.setting import Setting, Slip
from clusterkit.preflight.env_lint.variables import Variable

_LONGEST_LEVEL = 4
_TRUTHS = {
    "torch": (
        frozenset(["y", "yes", "1", "t", "true", "n", "no", "0", "f", "false"]),
        "PyTorch stops with an error",
    ),
    "libfabric": (
        frozenset(["1", "true", "yes", "on", "0", "false", "no", "off"]),
        "libfabric ignores it",
    ),
    "ofi": (frozenset(["1", "true", "0", "false"]), "aws-ofi-nccl refuses to start"),
}
"""Reader -> what it takes for a boolean, and what it does with anything else."""


def _value(setting: Setting, variable: Variable | None, *types: str) -> str | None:
    """Return the value where it is known, not blank, and of a variable of these types."""
    if variable is None or variable.type not in types or Slip.QUOTES_KEPT in setting.slips:
        return None
    return setting.value if setting.value and setting.value.strip() else None


def _not_a_number(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    value = _value(setting, variable, "int")
    if value is None or variable is None or not strtoll(value)[1].strip():
        return
    read, rest = strtoll(value)
    if variable.family == "torch":
        yield Remark(summary="not a number: PyTorch refuses or cuts it", hint="write a number")
    elif rest == value:
        yield Remark(summary="not a number: it is read as 0", hint=_right_number(variable, value))
    else:
        yield Remark(
            summary=f"read as {read}: the rest is ignored", hint=_right_number(variable, value)
        )


def _right_number(variable: Variable, value: str) -> str:
    truth = {"true": "1", "yes": "1", "on": "1", "false": "0", "no": "0", "off": "0"}
    number = truth.get(value.strip().lower())
    return f"write {number}" if number and variable.allows(int(number)) else "write a number"


def _octal(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    value = _value(setting, variable, "int")
    if value is not None and re.fullmatch(r"\s*[+-]?0[0-7]+\s*", value) and int(value, 8) > 7:
        yield Remark(
            summary=f"the leading 0 makes it octal: it is read as {int(value, 8)}",
            hint=f"write {int(value)}",
        )


def _out_of_range(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    value = _value(setting, variable, "int")
    if value is None or variable is None:
        return
    read, rest = strtoll(value)
    if not rest.strip() and not variable.allows(read):
        yield Remark(
            summary=f"{read} is outside of what it takes", hint=f"it takes {variable.allowed}"
        )


def _unknown_word(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    value = _value(setting, variable, "word", "exact", "level", "words")
    if value is None or variable is None:
        return
    if variable.type == "level" and value.strip().lstrip("-").isdigit():
        return
    given = items(value) if variable.type == "words" else (value,)
    wrong = [word for word in given if not _is_word(word, variable)]
    if wrong:
        listed = ", ".join(dict.fromkeys(word.strip() or "a blank" for word in wrong))
        near = [w for w in variable.words if w.upper() == wrong[0].strip().upper()]
        yield Remark(
            summary=f"not a word that it knows: {listed}; {_then(variable)}",
            hint=f"write {near[0]}" if near else f"it takes {', '.join(variable.words)}",
            # Words of a list choose what is logged, and nothing that a job needs.
            verdict=Verdict.WARN if variable.type == "words" else None,
        )


def _then(variable: Variable) -> str:
    if variable.family == "ofi":
        return "aws-ofi-nccl refuses to start"
    if variable.family == "torch":
        return "PyTorch stops with an error"
    # 2.30 reads the list at once (src/include/param/parser_bitset.h).
    return "it is ignored" + ", since 2.30 with the whole list" * (variable.type == "words")


def _is_word(word: str, variable: Variable) -> bool:
    if variable.type in {"exact", "level"}:
        return word in variable.words
    return word.upper() in {known.upper() for known in variable.words}


def _not_a_truth(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    value = _value(setting, variable, "truth")
    if value is None or variable is None:
        return
    words, then = _TRUTHS.get(variable.family, _TRUTHS["torch"])
    given = value.strip().lower()
    if given not in words and not (variable.family == "ofi" and re.fullmatch(r"-?\d+", given)):
        yield Remark(summary=f"not a truth value: {then}", hint="write 1 or 0")


def _level_number(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    value = _value(setting, variable, "level")
    if value is not None and value.strip().isdigit():
        number = int(value.strip()[:_LONGEST_LEVEL])
        word = ("LOC", "PIX", "PXB", "PHB", "SYS")[min(number, 4)]
        yield Remark(summary=f"a level of old, by number: it means {word}", hint=f"write {word}")


def _algorithms(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    value = _value(setting, variable, "algorithms")
    if value is None or variable is None:
        return
    # Since 2.24: FUNCTION:LIST;FUNCTION:LIST, or one list for all.
    lists = [part.rpartition(":")[2] for part in value.split(";") if part]
    known = {word.lower() for word in variable.words}
    wrong = [word for part in lists for word in items(part) if word.lower() not in known]
    if wrong:
        yield Remark(
            summary=f"unknown: {', '.join(word or 'an empty item' for word in wrong)}; NCCL 2.24 "
            "and later fail at start",
            hint=f"it takes {', '.join(variable.words)}",
        )


def _empty(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    if variable is not None and setting.value == "" and variable.family in {"nccl", "torch"}:
        yield Remark(summary="empty: as if it were not set")


def _no_effect(setting: Setting, variable: Variable | None) -> Iterator[Remark]:
    value = _value(setting, variable, "int")
    if value is None or variable is None or not variable.default:
        return
    if strtoll(value) == (int(variable.default), ""):
        yield Remark(summary="the default: it changes nothing")


RULES = (
    Rule(
        id="NCCL111",
        name="not-a-number",
        verdict=Verdict.FAIL,
        what="a value that is no integer, for a variable that takes one",
        why="NCCL reads integers with strtoll and does not look whether anything is left: `true` "
        "is 0, `4M` is 4. NCCL_IB_DISABLE=true disables nothing.",
        fix="Write a plain number, 1 or 0 for yes or no.",
        alone=_not_a_number,
    ),
    Rule(
        id="NCCL112",
        name="octal-number",
        verdict=Verdict.WARN,
        what="a number with a leading 0, which is read as octal",
        why="NCCL lets the number choose its base: 0106 is 70, and 0x6A is 106.",
        fix="Leave out the leading 0.",
        alone=_octal,
    ),
    Rule(
        id="NCCL113",
        name="out-of-range",
        verdict=Verdict.WARN,
        what="a number outside of the range that the variable takes",
        why="Depending on the variable it is clipped, ignored, or fails at start. For example, "
        "NCCL_P2P_DISABLE counts only when it is exactly 1.",
        fix="Choose a value of the range in the hint.",
        alone=_out_of_range,
    ),
    Rule(
        id="NCCL114",
        name="unknown-word",
        verdict=Verdict.FAIL,
        what="a word that the variable does not know, or one in the wrong case",
        why="It is ignored without a word. Levels and address families have to be in upper case; "
        "NODE is a class of nvidia-smi and none of NCCL.",
        fix="Write one of the words in the hint.",
        alone=_unknown_word,
    ),
    Rule(
        id="NCCL115",
        name="level-number",
        verdict=Verdict.WARN,
        what="a level (NCCL_P2P_LEVEL, NCCL_NET_GDR_LEVEL) given as a number",
        why="Numbers are the notation of old releases, hard to read, and all above 4 mean SYS.",
        fix="Write the word: LOC, PIX, PXB, PHB or SYS for 0 to 4.",
        alone=_level_number,
    ),
    Rule(
        id="NCCL116",
        name="unknown-algorithm",
        verdict=Verdict.FAIL,
        what="an algorithm or protocol that NCCL does not know",
        why="Since 2.24 NCCL fails at start, and no longer falls back to Ring; before, the word "
        "was ignored.",
        fix="Write one of the words in the hint, or unset the variable: NCCL chooses well.",
        alone=_algorithms,
    ),
    Rule(
        id="NCCL117",
        name="not-a-truth",
        verdict=Verdict.FAIL,
        what="a value that PyTorch, libfabric or aws-ofi-nccl takes neither for yes nor for no",
        why="PyTorch takes 1, y, yes, t, true and their opposites, and raises on anything else; "
        "libfabric takes on and off as well, and ignores the rest.",
        fix="Write 1 or 0.",
        alone=_not_a_truth,
    ),
    Rule(
        id="NCCL118",
        name="empty-value",
        verdict=Verdict.PASS,
        what="an empty value",
        why="NCCL and PyTorch take it as not set.",
        fix="Nothing; `unset` says it more clearly.",
        alone=_empty,
    ),
    Rule(
        id="NCCL119",
        name="default-value",
        verdict=Verdict.PASS,
        what="a value that is the default",
        why="It changes nothing.",
        fix="Nothing; remove it for a shorter script.",
        alone=_no_effect,
    ),
)
