"""The next step that the words of an exception ask for, where no rule knows more of it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose import evidence
from clusterkit.observe.diagnose.verdict import Diagnosis

RAISED = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 9, in main
    model.fit(data)
"""
LAST_LINE = re.compile(
    r"[a-z]{2,9}(?:\.sh)?: |rsync|WARNING|\d{4}:|[\w ]*ERROR|n1:|(?:Error|CMake)\b"
)
"""What stands in no traceback."""


@pytest.mark.parametrize("step", evidence.NEXT_STEPS, ids=lambda step: step.says.pattern[:60])
def test_an_error_is_told_with_its_own_next_step(
    say: Callable[[str], Diagnosis], step: evidence.NextStep
) -> None:
    example = step.example.replace("\\n", "\n")
    raised = "" if LAST_LINE.match(example) else RAISED
    found = say(f"step 1\n{raised}{example}\n").cause
    assert found is not None
    assert {found.rule, "unknown", "class", ""} & {*step.of.split(",")}
    told = [part for part in re.split(r"\{\w+\}", step.do) if part]
    assert all(part in found.do for part in told), found


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ("ValueError: the permutation requires CUDA tensors", "setting-refused"),
        ("AssertionError: PCH requires CUDA 12.8, got 12.4", "setting-refused"),
        ("RuntimeError: the prefix was not registered by the leader", "python-exception"),
        (
            "ImportError: cannot import name 'A' from partially initialized module 'b'",
            "python-exception",
        ),
    ],
)
def test_an_exception_is_not_taken_for_another_that_has_a_word_of_it(
    say: Callable[[str], Diagnosis], said: str, rule: str
) -> None:
    found = say(f"{RAISED}{said}\n").cause
    assert found is not None
    assert found.rule == rule
