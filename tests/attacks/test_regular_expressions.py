"""Whoever writes a line that we read must not choose how long we read it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

import pytest

from clusterkit.observe.diagnose.lines import LONGEST
from clusterkit.observe.diagnose.rules import own_rules
from tests.attacks.patterns import TABLES, Found, of_files, of_rules
from tests.attacks.worst_cases import slow

T = TypeVar("T")
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


def in_a_fresh_process(measure: Callable[[], T]) -> T:
    """Return what `measure` does; threads that other tests have left would use its time."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure).result()


def measured(find: Callable[[], Iterable[Found]]) -> list[tuple[Found, str | None]]:
    return [(one, slow(one.pattern, one.uses)) for one in find()]


def test_every_rule_of_diagnose_takes_linear_time() -> None:
    found = in_a_fresh_process(partial(measured, of_rules))
    assert len({one.pattern.pattern for one, _ in found}) > 400
    assert [(one.place, why) for one, why in found if why] == []


def test_every_other_regular_expression_takes_linear_time() -> None:
    found = in_a_fresh_process(partial(measured, of_files))
    unread = {one.place.partition(":")[0] for one, _ in found if not one.known}
    assert unread == set(TABLES), "a pattern that no test reads"
    assert len({one.pattern.pattern for one, _ in found if one.known}) > 250
    assert [(one.place, why) for one, why in found if why] == []


def test_no_line_of_4_kb_holds_up_a_rule() -> None:
    hostile = ("bash" + ": sh" * LONGEST)[: LONGEST - 60] + ": Permission denie"
    lines = [hostile, "a" * LONGEST, "sh: " * (LONGEST // 8) + "a/" * (LONGEST // 4)]
    begun = time.thread_time()
    for rule in own_rules():
        for line in lines:
            rule.match(f"{rule.needs[0]} {line}")
    assert time.thread_time() - begun < 2
