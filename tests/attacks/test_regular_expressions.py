"""Whoever writes a line that we read must not choose how long we read it."""

from __future__ import annotations

import re
import time

import pytest

from clusterkit.diagnose.lines import LONGEST
from clusterkit.diagnose.rules import own_rules
from tests.attacks.patterns import TABLES, of_files, of_rules
from tests.attacks.worst_cases import slow

ALL = frozenset({"search", "match", "fullmatch", "finditer"})


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:a+)+$",
        r"(?:a|a)*$",
        r"\w+\d+:",
        r"bash[^:]*: .*?([\w./-]+): Permission denied",
        r"Error: .*CUBLAS_STATUS",
        r"^\s*\w*\s*\w*$",
    ],
)
def test_the_attack_finds_what_is_slow(pattern: str) -> None:
    assert slow(re.compile(pattern), ALL)


def test_the_attack_lets_what_is_linear_pass() -> None:
    for pattern in (r"^(?>.*?Error: ).*CUBLAS_STATUS", r"(?<!\w)\w++:", r"a{1,64}b", r"[^:]*:x"):
        assert slow(re.compile(pattern), frozenset({"match"})) is None, pattern


def test_every_rule_of_diagnose_takes_linear_time() -> None:
    found = {(one.place, one.pattern.pattern): slow(one.pattern, one.uses) for one in of_rules()}
    assert len(found) > 400
    assert not {place: why for place, why in found.items() if why}


def test_every_other_regular_expression_takes_linear_time() -> None:
    found = tuple(of_files())
    unread = {one.place.partition(":")[0] for one in found if not one.known}
    assert unread == set(TABLES), "a pattern that no test reads"
    patterns = {one.pattern.pattern for one in found if one.known}
    assert len(patterns) > 250
    slow_ones = {one.place: slow(one.pattern, one.uses) for one in found}
    assert not {place: why for place, why in slow_ones.items() if why}


def test_no_line_of_4_kb_holds_up_a_rule() -> None:
    hostile = ("bash" + ": sh" * LONGEST)[: LONGEST - 60] + ": Permission denie"
    lines = [hostile, "a" * LONGEST, "sh: " * (LONGEST // 8) + "a/" * (LONGEST // 4)]
    begun = time.perf_counter()
    for rule in own_rules():
        for line in lines:
            rule.match(f"{rule.needs[0]} {line}")
    assert time.perf_counter() - begun < 2
