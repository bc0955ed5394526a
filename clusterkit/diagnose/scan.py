"""Find the lines of a log that rules match: one pass, whatever its size, in bounded memory.

Training logs repeat themselves but for their numbers. Each chunk is therefore reduced to the set
of its lines without digits, which takes three calls that run in C; only a line whose reduced form
is new is looked at, and only one that holds a text which some rule needs is read.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from clusterkit.diagnose.lines import LONGEST, read_line
from clusterkit.diagnose.rules import LEAST_NEED, Compare, Rule

_CHUNK = 1 << 20
_LONGEST_PIECE = 1 << 16
"""A line longer than this is read in pieces: binary data may never end one."""
_DROPPED = b"0123456789.\x00"
"""What is left out of a line's reduced form; NULs are what a log cut off while written to holds."""
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|.)")
_MOST_KNOWN = 1 << 14
_LONGEST_KNOWN = 512
_LONGEST_WORD = 64
_MOST_HITS = 4096
"""Different finds that are kept of one file; what repeats itself is one."""
_SURE = 4096
"""Lines of one reduced form after which the others are taken to be alike."""
_PLENTY = 1 << 15
"""Lines that were all found by the same rules, after which others of these rules are counted."""

RESTART = re.compile(r"^--- clusterkit: restart (?P<attempt>\d+) on (?P<node>\S+?),")
"""The line that the worker writes before what a later attempt prints."""
ROOT = "Root Cause (first observed failure)"
"""The line before torchrun's word about the rank that failed first."""
_MARKS = ("--- clusterkit: restart ", ROOT)


@dataclass(slots=True, kw_only=True)
class Hit:
    """The first line of its kind (rules, node, rank) in a file, and how often there was one."""

    rules: tuple[str, ...]
    """Names of the rules that match, the highest priority first."""
    file: Path
    line: int
    """From 1."""
    offset: int
    """Bytes before the line."""
    text: str
    node: str | None = None
    rank: int | None = None
    value: tuple[str, str] | None = None
    """Of a rule that compares: the groups `what` and `value`."""
    count: int = 1


@dataclass(slots=True, kw_only=True)
class Scanned:
    """What was found in one file."""

    file: Path
    size: int = 0
    hits: tuple[Hit, ...] = ()
    roots: tuple[int, ...] = ()
    """Where torchrun tells which rank failed first: bytes before that line."""
    problem: str | None = None
    """Why it could not be read."""


@dataclass(slots=True)
class _Tally:
    read: int = 0
    found: int = 0
    last: Hit | None = None


@dataclass(slots=True)
class _Sequence:
    lines: deque[Hit] = field(default_factory=deque)
    whole: bool = False


class Scanner:
    """Scan files with a set of rules; remembers between files what is of no interest."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """Prepare the searches for `rules`."""
        self._known: set[bytes] = set()
        self._known_words: set[bytes] = set()
        texts: dict[bytes, list[Rule | None]] = {}
        for rule in sorted(rules, key=lambda rule: (-rule.priority, rule.id)):
            for need in rule.needs:
                texts.setdefault(_reduced(need), []).append(rule)
        for mark in _MARKS:
            texts.setdefault(_reduced(mark), []).append(None)
        self._rules = {need: tuple(wanting) for need, wanting in texts.items()}
        self._needs: dict[bytes, list[bytes]] = {}
        """Needed texts by one word of theirs; words that many share come first."""
        often = Counter(word for need in texts for word in set(need.split()))
        for text in texts:
            words = [word for word in text.split() if len(word) >= LEAST_NEED] or text.split()
            shared = max(words, key=lambda word: (often[word], len(word)))
            self._needs.setdefault(shared, []).append(text)

    def scan(self, path: Path, *, start: int = 0) -> Scanned:
        """Return what a file holds from byte `start` on; one that cannot be read says why."""
        finds = _Finds(path)
        try:
            with path.open("rb") as stream:
                stream.seek(start)
                for chunk, offset in _chunks(stream, start):
                    self._chunk(chunk, offset, finds)
        except OSError as error:
            return Scanned(file=path, problem=error.strerror or str(error))
        return finds.scanned()

    def _chunk(self, chunk: bytes, offset: int, finds: _Finds) -> None:
        flat = chunk.replace(b"\r", b"\n") if b"\r" in chunk else chunk
        reduced = flat.translate(None, _DROPPED)
        if b"\x1b" in reduced:
            reduced = _ANSI.sub(b"", reduced)
        forms = reduced.split(b"\n")
        wanted = self._wanted(set(forms))
        if wanted:
            lines = flat.split(b"\n")
            starts = (0, *accumulate(len(line) + 1 for line in lines))
            counted, line_number = 0, finds.lines + 1
            for index, form in enumerate(forms):
                if form in wanted:
                    at = starts[index]
                    line_number += chunk.count(b"\n", counted, at)
                    counted = at
                    seen = _Seen(form, wanted[form])
                    self._line(seen, lines[index], line_number, offset + at, finds)
        finds.lines += chunk.count(b"\n")
        finds.size = offset + len(chunk)

    def _wanted(self, forms: set[bytes]) -> dict[bytes, tuple[Rule | None, ...]]:
        """Return the reduced forms that hold a needed text, and the rules that need it."""
        fresh = forms - self._known
        if not fresh:
            return {}
        words = set(b"\n".join(fresh).split()) - self._known_words
        together = b"\n".join(words)
        there = [word for word in self._needs if word in together]
        wanted = {}
        for form in fresh if there else ():
            needs = [n for word in there if word in form for n in self._needs[word] if n in form]
            if needs:
                wanted[form] = tuple(dict.fromkeys(r for n in needs for r in self._rules[n]))
        _remember(self._known, fresh - wanted.keys(), _LONGEST_KNOWN)
        if not there:
            _remember(self._known_words, words, _LONGEST_WORD)
        return wanted

    def _line(self, seen: _Seen, raw: bytes, number: int, offset: int, finds: _Finds) -> None:
        alike, of_rules = finds.tallies(seen)
        for tally, enough in ((alike, alike.read >= _SURE), (of_rules, of_rules.read >= _PLENTY)):
            if enough and tally.found == tally.read and tally.last is not None:
                tally.last.count += 1
                return
        if alike.read >= _SURE and not alike.found:
            return
        raw = raw.replace(b"\x00", b"")
        if len(raw) > LONGEST:
            raw = self._part(raw)
        line = read_line(raw)
        if line.text.startswith(_MARKS):
            finds.mark(line.text, offset)
            return
        rules = [rule for rule in seen.rules if rule is not None and rule.match(line.text)]
        hit = None
        if rules:
            hit = Hit(
                rules=tuple(rule.id for rule in sorted(rules, key=lambda rule: -rule.priority)),
                file=finds.path,
                line=number,
                offset=offset,
                text=line.text,
                node=line.node,
                rank=line.rank,
            )
            hit = finds.add(hit, rules)
        for tally in (alike, of_rules):
            tally.read += 1
            tally.found += bool(rules)
            tally.last = hit or tally.last

    def _part(self, raw: bytes) -> bytes:
        """Return the part of a long line that holds what some rule needs."""
        found = [at for need in self._needs if (at := raw.find(need)) >= 0]
        begin = max(0, min(found, default=0) - LONGEST // 4)
        return raw[begin : begin + LONGEST]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A reduced form, and the rules that may match its lines; None stands for our own marks."""

    form: bytes
    rules: tuple[Rule | None, ...]


class _Finds:
    """What has been found in one file so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.lines = 0
        self._forms: dict[bytes, _Tally] = {}
        self._of_rules: dict[tuple[Rule | None, ...], _Tally] = {}
        self._hits: dict[tuple[object, ...], Hit] = {}
        self._sequences: dict[tuple[object, ...], _Sequence] = {}
        self._roots: list[int] = []

    def scanned(self) -> Scanned:
        return Scanned(
            file=self.path,
            size=self.size,
            hits=tuple(self._hits.values()),
            roots=tuple(self._roots),
        )

    def tallies(self, seen: _Seen) -> tuple[_Tally, _Tally]:
        """Return how often lines of this form, and of any form that these rules want, were read."""
        if len(self._forms) > _MOST_KNOWN:
            self._forms.clear()
        alike = self._forms.setdefault(seen.form[:_LONGEST_KNOWN], _Tally())
        return alike, self._of_rules.setdefault(seen.rules, _Tally())

    def mark(self, text: str, offset: int) -> None:
        """Take note of where an attempt begins, or of what torchrun tells."""
        if text.startswith(ROOT):
            self._roots = [*self._roots[-7:], offset]
        elif RESTART.match(text):
            self._hits.clear()
            self._sequences.clear()
            self._roots.clear()
            self._forms.clear()
            self._of_rules.clear()

    def add(self, hit: Hit, rules: Sequence[Rule]) -> Hit | None:
        """Keep a hit, or count it where its kind is known; return the one that is kept."""
        match = rules[0].match(hit.text)
        groups = match.groupdict() if match else {}
        hit.node = groups.get("node") or hit.node
        rank = groups.get("rank") or ""
        hit.rank = int(rank) if rank.isdigit() else hit.rank
        self._compared(hit, rules)
        ongoing = [rule for rule in rules if rule.times == 1 or self._lasts(rule, hit)]
        if not ongoing:
            return None
        hit.rules = tuple(rule.id for rule in ongoing)
        key = (hit.rules, hit.node, hit.rank, hit.value)
        if key not in self._hits and len(self._hits) >= _MOST_HITS:
            key = (hit.rules, None, None, None)
        kept = self._hits.setdefault(key, hit)
        if kept is not hit:
            kept.count += 1
        return kept

    def _compared(self, hit: Hit, rules: Sequence[Rule]) -> None:
        for rule in rules:
            if rule.compare is Compare.DIFFERS and (match := rule.match(hit.text)):
                groups = match.groupdict()
                hit.value = (groups.get("what") or "", groups.get("value") or "")
                return

    def _lasts(self, rule: Rule, hit: Hit) -> bool:
        """Tell whether a sequence is whole; the first of its lines is then the hit's place."""
        key = (rule.id, hit.node, hit.rank)
        sequence = self._sequences.setdefault(key, _Sequence())
        if sequence.whole:
            return True
        lines = sequence.lines
        lines.append(hit)
        while hit.line - lines[0].line > rule.within or len(lines) > rule.times:
            lines.popleft()
        sequence.whole = len(lines) == rule.times
        if sequence.whole:
            first = lines[0]
            hit.line, hit.offset, hit.text = first.line, first.offset, first.text
            hit.count = rule.times
            lines.clear()
        return sequence.whole


def _reduced(text: str) -> bytes:
    return text.encode().translate(None, _DROPPED)


def _remember(known: set[bytes], new: Iterable[bytes], longest: int) -> None:
    """Add what is not too long; bounded, as what is forgotten is only looked at again."""
    if len(known) > _MOST_KNOWN:
        known.clear()
    known.update(one for one in new if len(one) <= longest)


def _chunks(stream: BinaryIO, offset: int) -> Iterator[tuple[bytes, int]]:
    """Yield whole lines, many at a time, and how many bytes stand before them."""
    rest = b""
    while data := stream.read(_CHUNK):
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
