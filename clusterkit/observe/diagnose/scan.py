"""Find the lines of a log that rules match: one pass, whatever its size, in bounded memory.

An automaton of all texts that rules need (Aho and Corasick, 1975) runs over each chunk in compiled
code; only a line that holds one of them is looked at here.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from itertools import accumulate
from pathlib import Path

from ahocorasick_rs import BytesAhoCorasick, Implementation

from clusterkit.core.text import ESCAPES_IN_BYTES
from clusterkit.observe.diagnose.hits import (
    BEGINNINGS,
    ENDINGS,
    ENDS,
    MARKS,
    STARTS,
    STARTUPS,
    Finds,
    Hit,
    Scanned,
    Seen,
)
from clusterkit.observe.diagnose.lines import LONGEST, TRACEBACK, counts_steps, read_line
from clusterkit.observe.diagnose.open_log import (
    Log,
    NotALogError,
    excerpts_around,
    open_log,
    text_size,
)
from clusterkit.observe.diagnose.rules import Rule

_CHUNK = 1 << 20
_HEAD = 1 << 16
"""Bytes of a log's beginning that tell what the numbers before its lines are."""
_NO_START = re.compile(
    rb"(?i)\W*$|.*(?:error|exception|fail|traceback|warn|no such|not found|unable|cannot|denied"
    rb"|invalid|container id|last \d+ bytes|terminate called )"
)
_WARNED = re.compile(rb"\S+\.py:\d+: \w*Warning: ")
"""A line of a start all the same: Python prints each once in a process."""
_DATED = re.compile(rb"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?")
_WRAPPED = re.compile(
    rb"( ?)\n(?=(?:operation )?timeout: WorkNCCL\(|WorkNCCL\(|(?:SeqNum|Numel\w+)=\d|OpType=[A-Z]"
    rb"|Timeout\(ms\)=\d|(?:detected )?by watchdog at work)"
)
"""Before the rest of what NCCL's watchdog says, where its line was broken as it was copied."""
_SHORTEST_START = 20
_MOST_HEADS = 4
_LONGEST_PIECE = 1 << 16
"""A line longer than this is read in pieces: binary data may never end one."""
_DIGITS = b"0123456789."
"""What is left out of a line's reduced form: training logs repeat themselves but for these."""
_SURE = 4096
"""Lines of one reduced form after which the others are taken to be alike."""
_PLENTY = 1 << 15
"""Lines that were all found by the same rules, after which others of these rules are counted."""


@functools.lru_cache(maxsize=1)
def _automaton(rules: tuple[Rule, ...]) -> tuple[dict[bytes, list[Rule | None]], BytesAhoCorasick]:
    """Return the rules by the texts that they need, None for our own marks, and their automaton.

    It takes longer to make than a log of some megabytes to be read.
    """
    texts: dict[bytes, list[Rule | None]] = {
        mark.encode(): [None] for mark in (*MARKS, ENDS, *BEGINNINGS, *STARTS, *STARTUPS, *ENDINGS)
    }
    for rule in rules:
        for need in rule.needs:
            texts.setdefault(need.encode(), []).append(rule)
    return texts, BytesAhoCorasick(tuple(texts), implementation=Implementation.DFA)


class Scanner:
    """Scan files with a set of rules."""

    def __init__(self, rules: Sequence[Rule], processes: int | None = None) -> None:
        """Prepare the search for `rules` in logs of a job of so many processes."""
        self._processes = processes
        texts, self._automaton = _automaton(tuple(rules))
        self._needs, self._rules = tuple(texts), tuple(texts.values())

    def scan(self, path: Path) -> Scanned:
        """Return what a file holds; one that cannot be read says why."""
        finds = Finds(path, self._processes)
        try:
            with open_log(path) as log:
                for chunk, offset in _chunks(log):
                    if offset == 0:
                        finds.steps = counts_steps(chunk[:_HEAD])
                        finds.heads = tuple(dict.fromkeys(_head_lines(chunk[:_HEAD])))
                        finds.learnt.learn_times(chunk[:_HEAD].rpartition(b"\n")[0] or chunk)
                    finds.recent.append((offset, chunk))
                    self._chunk(chunk, offset, finds)
        except NotALogError as error:
            return Scanned(file=path, problem=str(error))
        except OSError as error:
            return Scanned(file=path, problem=error.strerror or str(error))
        scanned = finds.scanned()
        scanned.damage = log.damage
        return scanned if log.plain else _with_excerpts(scanned)

    def _chunk(self, chunk: bytes, offset: int, finds: Finds) -> None:
        flat = chunk.replace(b"\r", b"\n") if b"\r" in chunk else chunk
        if b"WorkNCCL(" in flat or b"by watchdog at work" in flat:
            flat = _WRAPPED.sub(lambda end: b" \x00" if end[1] else b" ", flat)
        counted, number = 0, finds.lines + 1
        finds.started(chunk, offset)
        for seen, raw, at in self._wanted(flat):
            number += chunk.count(b"\n", counted, at)
            counted = at
            self._line(seen, raw, number, offset + at, finds)
        finds.lines += chunk.count(b"\n")
        finds.size = offset + len(chunk)

    def _wanted(self, flat: bytes) -> Iterator[tuple[Seen, bytes, int]]:
        """Yield the lines that hold a needed text, and how many bytes stand before each."""
        plain = _plain(flat)
        starts = _starts(flat) if plain is not flat else ()
        index = counted = 0
        matches = self._automaton.find_matches_as_indexes(plain, overlapping=True)
        for begin, end, needs in _by_line(plain, matches):
            form = plain[begin:end].translate(None, _DIGITS)
            rules = dict.fromkeys(rule for need in needs for rule in self._rules[need])
            at, until = begin, end
            if starts:
                index += plain.count(b"\n", counted, begin)
                counted = begin
                at, until = starts[index], starts[index + 1] - 1
            raw = _part(flat[at:until].replace(b"\x00", b""), self._needs[needs[0]])
            yield Seen(form, tuple(rules)), raw, at

    def _line(self, seen: Seen, raw: bytes, number: int, offset: int, finds: Finds) -> None:
        alike, of_rules = finds.tallies(seen)
        for tally, enough in ((alike, alike.read >= _SURE), (of_rules, of_rules.read >= _PLENTY)):
            if enough and tally.found == tally.read and tally.last is not None:
                tally.last.count += 1
                tally.last.last, tally.last.last_line = offset, number
                return
        if max(alike.read, alike.ignored) >= _SURE and not alike.found:
            return
        line = read_line(raw)
        if None in seen.rules:
            finds.mark(line.text, offset)
            if line.text.startswith(MARKS) and line.text != TRACEBACK:
                return
        wanted = [rule for rule in seen.rules if rule is not None]
        rules = _matching(wanted, line.text)
        if (learnt := finds.learnt.pattern) is not None:
            bare = read_line(raw, learnt)
            found = _matching(wanted, bare.text) if bare.text != line.text else []
            better = found and (not rules or found[0].priority >= rules[0].priority)
            line, rules, learnt = (bare, found, learnt) if better else (line, rules, None)
        often = alike.often(number) and all(rule.closing for rule in rules)
        if rules and (often or finds.ignores(line, offset, learnt)):
            alike.ignored += 1
            return
        hit = None
        if rules:
            hit = Hit(
                rules=tuple(rule.id for rule in rules),
                file=finds.path,
                line=number,
                offset=offset,
                last=offset,
                last_line=number,
                text=line.text,
                stamp=line.stamp,
                local=line.local,
                node=line.node,
                rank=finds.rank_of(line),
                before=line.before if finds.rank_of(line) == line.rank else None,
                learnt=learnt,
            )
            hit = finds.add(hit, rules)
        for tally in (alike, of_rules):
            tally.read += 1
            tally.since = tally.since or (number if rules else 0)
            tally.found += bool(rules)
            tally.last = hit or tally.last


def _head_lines(head: bytes) -> Iterator[bytes]:
    """Yield the lines of a beginning that stand there again only as a program is started again."""
    for raw in head.split(b"\n", _MOST_HEADS)[:_MOST_HEADS]:
        if TRACEBACK[:-1].encode() in raw:
            return  # frames are those of a failure
        line = _DATED.sub(b"", raw.strip()).strip()
        long = len(line) >= _SHORTEST_START and len(line.split()) > 2 and not raw[:1].isspace()
        if long and (_WARNED.match(line) or not _NO_START.match(line)):
            yield line


def _matching(wanted: Sequence[Rule], text: str) -> list[Rule]:
    """Return the rules that a line matches, the most precise first."""
    rules = [rule for rule in wanted if rule.match(text)]
    rules.sort(key=lambda rule: (-rule.priority, rule.id))
    known = (rule for rule in wanted if not rule.closing)
    if rules and rules[0].closing and any(rule.excuses(text) for rule in known):
        return []
    return rules


def _plain(flat: bytes) -> bytes:
    """Return lines without colours, and without the NULs of a log cut off while written to."""
    plain = flat.translate(None, b"\x00") if b"\x00" in flat else flat
    return ESCAPES_IN_BYTES.sub(b"", plain) if b"\x1b" in plain else plain


def _starts(flat: bytes) -> tuple[int, ...]:
    """Return how many bytes stand before each line, and before one after the last."""
    return (0, *accumulate(len(line) + 1 for line in flat.split(b"\n")))


def _by_line(
    plain: bytes, matches: Iterable[tuple[int, int, int]]
) -> Iterator[tuple[int, int, list[int]]]:
    """Yield where each line with matches begins and ends, and the numbers of what it holds."""
    begin = end = 0
    needs: list[int] = []
    for need, start, _ in matches:
        if needs and start >= end:
            yield begin, end, needs
            needs = []
        if not needs:
            begin = plain.rfind(b"\n", end, start) + 1
            end = plain.find(b"\n", start)
            end = len(plain) if end < 0 else end
        needs.append(need)
    if needs:
        yield begin, end, needs


def _part(raw: bytes, need: bytes) -> bytes:
    """Return a line, or of a long one the part that holds `need`."""
    if len(raw) <= LONGEST:
        return raw
    begin = max(0, raw.find(need) - LONGEST // 4)
    return raw[begin : begin + LONGEST]


def _with_excerpts(scanned: Scanned) -> Scanned:
    """Keep what will be asked of the surroundings of a log that is not read twice."""
    places = {place for hit in scanned.hits for place in (hit.offset, hit.last)}
    places.update(hit.offset for hit in scanned.tracebacks)
    places.update(scanned.roots, (ending.offset for ending in scanned.endings), (scanned.size,))
    scanned.excerpts = excerpts_around(scanned.file, places)
    for hit in (*scanned.hits, *scanned.tracebacks):
        hit.excerpts = scanned.excerpts
    return scanned


def _chunks(log: Log) -> Iterator[tuple[bytes, int]]:
    """Yield whole lines, many at a time, and how many bytes stand before them."""
    rest, offset = b"", 0
    while data := log.read(_CHUNK):
        data = rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > _LONGEST_PIECE:
            end = len(data)
        rest = data[end:]
        if end:
            yield data[:end], offset
            offset += end
    if rest:
        yield rest, offset


_WORTH_IT = 1 << 28
"""Bytes of all files from which on it pays to start Python once more for each core."""
_MOST = 4
"""Processes: each takes about 50 MiB."""


def scan_all(
    rules: Sequence[Rule], paths: Sequence[Path], ranks: int | None = None
) -> tuple[Scanned, ...]:
    """Return what each file holds, in their order; of a job of so many ranks, where it is known."""
    sizes = {path: text_size(path) for path in paths}
    processes = min(len(sizes), len(os.sched_getaffinity(0)), _MOST)
    if processes > 1 and sum(sizes.values()) >= _WORTH_IT:
        try:
            return _in_processes(processes, rules, sizes, paths, ranks)
        except (BrokenExecutor, OSError):  # no memory, or no semaphores: one after the other
            pass
    scanner = Scanner(rules, ranks)
    return tuple(scanner.scan(path) for path in paths)


def _in_processes(
    processes: int,
    rules: Sequence[Rule],
    sizes: dict[Path, int],
    paths: Sequence[Path],
    ranks: int | None,
) -> tuple[Scanned, ...]:
    shares: list[list[Path]] = [[] for _ in range(processes)]
    for path in sorted(sizes, key=lambda path: -sizes[path]):
        min(shares, key=lambda share: sum(sizes[one] for one in share)).append(path)
    # Not forked: whoever waits for a job over ssh has threads.
    context = multiprocessing.get_context("spawn")
    others = frozenset(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        try:
            done = pool.map(_scan_share, [rules] * processes, shares, [ranks] * processes)
            found = {scanned.file: scanned for share in done for scanned in share}
        except KeyboardInterrupt:
            for child in frozenset(multiprocessing.active_children()) - others:
                child.terminate()  # else the pool waits until they have read all
            raise
    return tuple(found[path] for path in paths)


def _scan_share(rules: Sequence[Rule], paths: Sequence[Path], ranks: int | None) -> list[Scanned]:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who has asked is told to stop, and ends them
    scanner = Scanner(rules, ranks)
    return [scanner.scan(path) for path in paths]
