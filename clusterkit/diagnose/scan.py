"""Find the lines of a log that rules match: one pass, whatever its size, in bounded memory.

Training logs repeat themselves but for their numbers. Each chunk is therefore reduced to the set
of its lines without digits, which takes three calls that run in C; only a line whose reduced form
is new is looked at, and only one that holds a text which some rule needs is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from clusterkit.diagnose.finds import MARKS, Finds, Hit, Scanned, Seen
from clusterkit.diagnose.lines import LONGEST, counts_steps, read_line
from clusterkit.diagnose.rules import LEAST_NEED, Rule
from clusterkit.escapes import ESCAPES_IN_BYTES

_CHUNK = 1 << 20
_HEAD = 1 << 16
"""Bytes of a log's beginning that tell what the numbers before its lines are."""
_LONGEST_PIECE = 1 << 16
"""A line longer than this is read in pieces: binary data may never end one."""
_DROPPED = b"0123456789.\x00"
"""What is left out of a line's reduced form; NULs are what a log cut off while written to holds."""
_MOST_KNOWN = 1 << 15
_LONGEST_KNOWN = 512
_LONGEST_WORD = 64
_MOST_NEW = 4096
"""New forms of one chunk beyond which nothing repeats itself, and it is no use to know them."""
_SURE = 4096
"""Lines of one reduced form after which the others are taken to be alike."""
_PLENTY = 1 << 15
"""Lines that were all found by the same rules, after which others of these rules are counted."""


class Scanner:
    """Scan files with a set of rules; remembers between files what is of no interest."""

    def __init__(self, rules: Sequence[Rule], processes: int | None = None) -> None:
        """Prepare the searches for `rules` in logs of a job of so many processes."""
        self._processes = processes
        self._known: set[bytes] = set()
        self._known_words: set[bytes] = set()
        texts: dict[bytes, list[Rule | None]] = {}
        for rule in sorted(rules, key=lambda rule: (-rule.priority, rule.id)):
            for need in rule.needs:
                texts.setdefault(_reduced(need), []).append(rule)
        for mark in MARKS:
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
        finds = Finds(path, self._processes)
        try:
            with path.open("rb") as stream:
                stream.seek(start)
                for chunk, offset in _chunks(stream, start):
                    if offset == start:
                        finds.steps = counts_steps(chunk[:_HEAD])
                    self._chunk(chunk, offset, finds)
        except OSError as error:
            return Scanned(file=path, problem=error.strerror or str(error))
        return finds.scanned()

    def _chunk(self, chunk: bytes, offset: int, finds: Finds) -> None:
        flat = chunk.replace(b"\r", b"\n") if b"\r" in chunk else chunk
        reduced = flat.translate(None, _DROPPED)
        if b"\x1b" in reduced:
            reduced = ESCAPES_IN_BYTES.sub(b"", reduced)
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
                    seen = Seen(form, wanted[form])
                    self._line(seen, lines[index], line_number, offset + at, finds)
        finds.lines += chunk.count(b"\n")
        finds.size = offset + len(chunk)

    def _wanted(self, forms: set[bytes]) -> dict[bytes, tuple[Rule | None, ...]]:
        """Return the reduced forms that hold a needed text, and the rules that need it."""
        fresh = forms - self._known
        if not fresh:
            return {}
        together = b"\n".join(fresh)
        words = set(together.split()) - self._known_words
        new = b"\n".join(words)
        there = [word for word in self._needs if word in new]
        wanted: dict[bytes, dict[Rule | None, None]] = {}
        for need in (need for word in there for need in self._needs[word]):
            for form in _lines_with(need, together):
                wanted.setdefault(form, {}).update(dict.fromkeys(self._rules[need]))
        if len(fresh) <= _MOST_NEW:
            _remember(self._known, fresh - wanted.keys(), len(together), _LONGEST_KNOWN)
        words.difference_update(one for word in there for one in _lines_with(word, new))
        _remember(self._known_words, words, len(new), _LONGEST_WORD)
        return {form: tuple(rules) for form, rules in wanted.items()}

    def _line(self, seen: Seen, raw: bytes, number: int, offset: int, finds: Finds) -> None:
        alike, of_rules = finds.tallies(seen)
        for tally, enough in ((alike, alike.read >= _SURE), (of_rules, of_rules.read >= _PLENTY)):
            if enough and tally.found == tally.read and tally.last is not None:
                tally.last.count += 1
                tally.last.last = offset
                return
        if alike.read >= _SURE and not alike.found:
            return
        raw = raw.replace(b"\x00", b"")
        if len(raw) > LONGEST:
            raw = self._part(raw)
        line = read_line(raw)
        if line.text.startswith(MARKS):
            finds.mark(line.text, offset)
            return
        rules = [rule for rule in seen.rules if rule is not None and rule.match(line.text)]
        rules.sort(key=lambda rule: (-rule.priority, rule.id))
        hit = None
        if rules:
            hit = Hit(
                rules=tuple(rule.id for rule in rules),
                file=finds.path,
                line=number,
                offset=offset,
                last=offset,
                text=line.text,
                node=line.node,
                rank=None if line.bare and finds.steps else line.rank,
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


def _lines_with(text: bytes, lines: bytes) -> Iterator[bytes]:
    """Yield each of `lines` that holds `text`."""
    at = lines.find(text)
    while at >= 0:
        end = lines.find(b"\n", at)
        end = len(lines) if end < 0 else end
        yield lines[lines.rfind(b"\n", 0, at) + 1 : end]
        at = lines.find(text, end)


def _reduced(text: str) -> bytes:
    return text.encode().translate(None, _DROPPED)


def _remember(known: set[bytes], new: Set[bytes], size: int, longest: int) -> None:
    """Add texts of `size` bytes together, unless they are `longest` or more on the average.

    Bounded, as what is forgotten is only looked at again.
    """
    if len(known) > _MOST_KNOWN:
        known.clear()
    if size < longest * len(new):
        known.update(new)


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
