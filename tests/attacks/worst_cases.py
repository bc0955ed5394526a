"""Make the texts on which a regular expression is slowest, and measure how its time grows.

A backtracking engine takes more than linear time in three ways: a repeat inside a repeat, two
repeats after one another that match the same characters, and a search that begins anew at each
repetition of what stands before a repeat. Each text is therefore a beginning that the pattern
matches, something that one of its repeats matches over and over, and an end that it refuses.
"""

from __future__ import annotations

import math
import re
import re._parser as parser
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from types import FrameType
from typing import Any

SIZE = 1 << 15
"""Characters of the texts; eight times what a line is cut to."""
QUICK_S = 0.006
"""No text of this size took so long with a linear pattern on an idle machine."""
GIVE_UP_S = 0.25
_END = "\x00!\n!"
"""No class of characters that is worth repeating takes all of these, and `.*$` stops before."""
_MOST_CORES = 40
_CATEGORIES = {
    "CATEGORY_DIGIT": "0",
    "CATEGORY_NOT_DIGIT": "a",
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": "a",
    "CATEGORY_WORD": "a",
    "CATEGORY_NOT_WORD": "-",
}
_PREFERRED = "a0 -:.,/A=_'\"[({<@#%\t\n"

Use = Callable[[re.Pattern[Any], Any], object]
USES: dict[str, Use] = {
    "search": lambda pattern, text: pattern.search(text),
    "match": lambda pattern, text: pattern.match(text),
    "fullmatch": lambda pattern, text: pattern.fullmatch(text),
    "finditer": lambda pattern, text: sum(1 for _ in pattern.finditer(text)),
}
"""How patterns are used; findall, split and sub do what finditer does."""


class _TooSlowError(Exception):
    """The time is over."""


@cache
def slow(pattern: re.Pattern[Any], uses: frozenset[str]) -> str | None:
    """Return for which text the time of a pattern grows faster than the text; None for a fair one.

    The time is that of the processor, the least of several, and what is slow is measured twice, so
    that other programs on the machine do no harm.
    """
    searches = bool(uses & {"search", "finditer"})  # each begins with what `match` does
    hardest = uses - {"match"} if searches else uses
    for use, text in product(sorted(hardest), _texts(pattern)):
        if all((found := _slow_on(pattern, USES[use], text)) is not None for _ in range(2)):
            return f"{use} of {text(60)!r}...: {found}"
    return None


def _slow_on(pattern: re.Pattern[Any], use: Use, text: Callable[[int], Any]) -> str | None:
    eighth = _time(pattern, use, text(SIZE // 8))
    if eighth * 64 <= QUICK_S:  # were its growth quadratic, the whole would be quick
        return None
    if eighth < GIVE_UP_S:
        # as strict as five times of the next step is, at a fifth of its time
        first = min(_time(pattern, use, text(SIZE // 32)) for _ in range(3))
        if eighth < 4.26 * first:
            return None
    half = _time(pattern, use, text(SIZE // 2))
    if half * 4 <= QUICK_S or half < min(5 * eighth, GIVE_UP_S):
        return None
    if _time(pattern, use, text(SIZE)) == math.inf:
        return f"{SIZE} characters take more than {GIVE_UP_S} s"
    long, short = (
        min(_time(pattern, use, text(size)) for _ in range(3)) for size in (SIZE, SIZE // 4)
    )
    if long <= QUICK_S or long < min(8 * short, GIVE_UP_S):
        return None
    return f"{SIZE // 4} characters take {short * 1e3:.1f} ms, {SIZE} {long * 1e3:.1f} ms"


def _time(pattern: re.Pattern[Any], use: Use, text: Any) -> float:
    begun = time.thread_time()
    try:
        with _deadline(GIVE_UP_S):
            use(pattern, text)
    except _TooSlowError:
        return math.inf
    return time.thread_time() - begun


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    def over(_number: int, _frame: FrameType | None) -> None:
        raise _TooSlowError

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _texts(pattern: re.Pattern[Any]) -> Iterator[Callable[[int], Any]]:
    is_bytes = isinstance(pattern.pattern, bytes)
    tree = parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE if is_bytes else pattern.flags)
    heads, cores = _parts(tree, "")
    for head, core in product(heads, cores):

        def text(size: int, head: str = head, core: str = core) -> Any:
            whole = head + core * (size // len(core)) + _END
            return whole.encode("latin-1", "replace") if is_bytes else whole

        yield text


def _parts(tree: Any, before: str) -> tuple[list[str], list[str]]:
    """Return what the texts of a pattern may begin with, and what they may repeat."""
    heads: dict[str, None] = {"": None}
    cores: dict[str, None] = {}
    _walk(tree, before, heads, cores)
    single = {character for core in cores for character in core}
    cores |= dict.fromkeys(sorted(single, key=lambda c: (c not in _PREFERRED, c))[:12])
    longest = sorted(cores, key=len)[:_MOST_CORES]
    return list(heads)[:8], [core for core in longest if core]


def _walk(tree: Any, before: str, heads: dict[str, None], cores: dict[str, None]) -> str:
    """Go through a sequence; return a text that it matches."""
    own = ""
    for op, argument in tree:
        name = str(op)
        if name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
            least, most, body = argument
            inner = _walk(body, before + own, heads, cores)
            if most > 8:
                heads[before + own] = None
                cores[inner] = None
                cores[own + inner] = None
                cores[before + own + inner] = None
                for character in _characters(body):
                    cores[character] = None
            own += inner * max(1, min(least, 64)) if most else ""
        elif name == "SUBPATTERN":
            own += _walk(argument[-1], before + own, heads, cores)
        elif name == "ATOMIC_GROUP":
            own += _walk(argument, before + own, heads, cores)
        elif name == "BRANCH":
            texts = [_walk(branch, before + own, heads, cores) for branch in argument[1]]
            cores |= dict.fromkeys(texts)
            own += texts[0]
        elif name in {"ASSERT", "ASSERT_NOT"}:
            _walk(argument[1], before + own, heads, cores)
        else:
            own += next(iter(_one(name, argument)), "")
    cores[before + own] = None
    return own


def _characters(body: Any) -> list[str]:
    """Return characters that a repeat of one character takes; none for other bodies."""
    if len(body) != 1:
        return []
    op, argument = body[0]
    return _one(str(op), argument)[:4]


def _one(name: str, argument: Any) -> list[str]:
    if name == "LITERAL":
        return [chr(argument)]
    if name == "NOT_LITERAL":
        return [c for c in _PREFERRED if ord(c) != argument]
    if name == "ANY":
        return ["a", "0", " "]
    if name == "CATEGORY":
        return [_CATEGORIES[str(argument)]]
    if name == "IN":
        return _of_set(argument)
    return []


def _of_set(items: Any) -> list[str]:
    taken: list[str] = []
    for op, argument in items:
        if str(op) == "RANGE":
            taken += [chr(argument[0]), chr(argument[1])]
        elif str(op) != "NEGATE":
            taken += _one(str(op), argument)
    if str(items[0][0]) != "NEGATE":
        return taken
    refused = re.compile("[" + "".join(_source(item) for item in items[1:]) + "]")
    return [c for c in _PREFERRED if not refused.match(c)]


def _source(item: Any) -> str:
    op, argument = item
    if str(op) == "RANGE":
        return f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}"
    if str(op) == "CATEGORY":
        word = str(argument).removeprefix("CATEGORY_")
        letter = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}[word.removeprefix("NOT_")]
        return "\\" + (letter.upper() if word.startswith("NOT_") else letter)
    return re.escape(chr(argument))
