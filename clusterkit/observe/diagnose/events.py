"""Give each find the rule that has it, its place and its time: from hits to events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from pathlib import Path

from clusterkit.core.hosts import hostlist
from clusterkit.launch.array.spec import ranks_in_words
from clusterkit.observe.diagnose.caught import without_caught
from clusterkit.observe.diagnose.evidence import (
    at_last,
    began_after_report,
    began_again,
    ends_well,
    good_after,
    left_behind,
    lines_after,
    lines_around,
    next_run,
    nodes_named,
    of_snippet,
    only_printed,
    other_script_after,
    passed,
    raised_in,
    rank_below,
    same_script_after,
    script_of,
    shell_went_on,
    side_step,
    stepped_between,
    survived,
    time_near,
    told_badly,
    told_before,
    traceback_of,
    well_until,
    went_on,
    year_of,
)
from clusterkit.observe.diagnose.hits import REPORTS, STARTUPS, Ending, Hit, Scanned
from clusterkit.observe.diagnose.lines import form_of, rank_in, time_of
from clusterkit.observe.diagnose.order import BARE, Event, handled_by_all
from clusterkit.observe.diagnose.rules import OF_MANY, Compare, Pattern, Role, Rule, gathers
from clusterkit.observe.diagnose.side_commands import without_side_commands
from clusterkit.observe.diagnose.tracebacks import unknown_ends

_MOST_TIMED = 64
"""Finds of one file whose time is looked for around them."""
_MOST_AFTER = 8
"""Good lines after an error of which nobody says that it ended the job."""
_CTRL_C = "KeyboardInterrupt"
_USAGE = "usage: "
_MOST_FOLLOWED = 64
"""Finds of one file of which it is looked whether the training went on after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A line that the run folder of a job stands for, and where and when it became true."""

    text: str
    node: str | None = None
    rank: int | None = None
    time: float | None = None
    """Seconds since the epoch."""
    file: Path | None = None
    """What tells it, where that is not the run folder itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A log to read, and the node whose output it is, where that is known."""

    path: Path
    node: str | None = None
    scheduler: bool = False
    """Whether it is the output of a scheduler or a worker, and not of the training."""


def events_of(
    rules: Mapping[str, Rule],
    found: Sequence[tuple[Source, Scanned]],
    facts: Iterable[Fact] = (),
    *,
    folder: Path = Path(),
) -> tuple[Event, ...]:
    """Return the events of all logs, and of the facts of the run in `folder`."""
    comparison = _Comparison(rules, found)
    events = []
    well = _Endings(rules, [scanned for _, scanned in found])
    for source, scanned in found:
        looked, followed, before = 0, 0, None
        for hit in scanned.hits:
            holding = (rules[name] for name in hit.rules if comparison.holds(name, hit))
            rule, near = next(_in_place(holding, hit), (None, {}))
            if rule is None or (source.scheduler and rule.generic):
                continue
            if not rule.closing and rules[hit.rules[-1]].closing:
                continue  # told by the hit of the rule that asks for more than the line
            if _taken_back(rule, hit, scanned.size):
                continue
            _placed_by(near, hit)
            if rule.role is Role.CAUSE and hit.node is None and hit.rank is None:
                hit.rank = rank_below(hit)
            own = time_of(f"{hit.stamp} {hit.text}".lstrip(), year=year_of(hit.file))
            wanted = rule.role is not Role.CONSEQUENCE
            sought = wanted and looked < _MOST_TIMED
            looked += sought
            time = time_near(hit) if own is None and sought else own
            if time is None and wanted:
                time = before  # not before what the file told until there
            before = time if wanted else before
            ends = not rule.silent and followed < _MOST_FOLLOWED
            followed += ends
            events.append(
                Event(
                    rule=rule,
                    groups={**near, **_groups(rule, hit.text, comparison.values(rule, hit))},
                    hit=hit,
                    node=near.get("of_node") if _of_another(near) else comparison.node(source, hit),
                    rank=rank_in(near.get("of_rank", "")) if _of_another(near) else hit.rank,
                    time=time,
                    timed=own is not None,
                    handled=well.cover(rule, hit)
                    or (ends and (well.came(rule, hit) or _lived_on(rule, hit, scanned.size))),
                )
            )
        events += [
            Event(
                rule=rule,
                groups=groups,
                hit=hit,
                node=comparison.node(source, hit),
                rank=hit.rank,
                time=time_near(hit),
                timed=False,
                handled=well.cover(rule, hit)
                or well.came(rule, hit)
                or _lived_on(rule, hit, scanned.size),
            )
            for rule, hit, groups in unknown_ends(rules, scanned)
            if not source.scheduler
        ]
    events += [event for fact in facts if (event := _event_of(rules, fact, folder)) is not None]
    events = [replace(e, handled=e.handled or told_badly(e.hit)) for e in events]
    events = without_caught(events)
    if all(event.rule.closing or event.handled for event in events):  # none tells of a failure
        events = [event for event in events if not event.rule.closing or _ends(event)]
    events = list(handled_by_all(events))
    for _, scanned in found:
        events = _since(_last_start(events, scanned), events, scanned)
        events = _since(_last_program(events, scanned), events, scanned)
    events = without_side_commands(_without_snippets(events), [one for _, one in found])
    return _without_side_steps(_of_the_last_run(events, [scanned for _, scanned in found]))


def _last_start(events: Sequence[Event], scanned: Scanned) -> int:
    """Return where the last run in a file begins: bytes before it; 0 where there is one run.

    What tells of a start stands there once for each process, so as often after the failure of an
    earlier run as before it; where processes of one run start and fail at once it does not. What
    only follows from another's end, and what a rank is known of, begins no run.
    """
    of_file = [e for e in events if e.hit.file == scanned.file and e.hit.line and not e.handled]
    live = [e.hit for e in of_file if e.generic or e.rule.role is Role.CAUSE]
    if not live or any(e.rank is not None for e in of_file):
        return 0
    begun, last = (of(hit.offset for hit in live) for of in (min, max))
    for words, start in reversed(scanned.startups):
        before = [hit.last for hit in live if hit.last < start]
        if not before or start > last or _by_another(words, live, max(before)):
            continue
        places = [at for text, at in scanned.startups if text == words]
        first, again = sum(at < begun for at in places), sum(at > max(before) for at in places)
        if again >= first >= (words not in STARTUPS):
            return min(at for _, at in scanned.startups if at > max(before))
    return 0


def _by_another(words: str, live: Iterable[Hit], end: int) -> bool:
    """Tell whether a rank that refused its arguments, too, began just below where another had."""
    if not words.startswith(_USAGE):
        return False
    one = at_last(next(hit for hit in live if hit.last == end))
    then = min((hit for hit in live if hit.offset > end), key=lambda hit: hit.offset, default=one)
    begun = any(line.startswith(_USAGE) for line in lines_after(one, 1))
    return begun and form_of(then.text) == form_of(one.text)


def _last_program(events: Sequence[Event], scanned: Scanned) -> int:
    """Return how many bytes stand before where the last program of a script that failed begins.

    Each of them is started after the one before it had ended, and works for a while until then. Of
    ranks it is known by steps that are of no other rank, or by the report of a launcher between.
    """
    of_file = [e for e in events if e.hit.file == scanned.file and e.hit.line and not e.handled]
    ranked = any(e.rank is not None or e.rule.id in REPORTS for e in of_file)
    stopped = ranked or any(e.rule.id == _REFUSED for e in of_file)
    ends = [e.hit for e in of_file if _may_end(e) or (stopped and _CTRL_C in e.hit.text)]
    views = [replace(hit, last=hit.offset) for hit in ends if hit.last > hit.offset]
    live = sorted((*views, *map(at_last, ends)), key=lambda hit: hit.last)
    left = [
        max((one.last, *(root for root in scanned.roots if root < after.offset))) + 1
        for one, after in pairwise(live)
        if (raised_in(after) or script_of(after))
        and (
            stepped_between(one, after) or began_after_report(one, after, scanned.roots)
            if ranked
            else any(began(one, after) for began in _BEGAN)
        )
    ]
    return max(left, default=0)


_REFUSED = "wrong-arguments"
_BEGAN = (
    lambda one, after: left_behind(one, after.offset),
    other_script_after,
    same_script_after,
)
"""How it is told that another program began between two ends."""


def _may_end(event: Event) -> bool:
    return event.generic or event.rule.role is Role.CAUSE


def _since(start: int, events: Sequence[Event], scanned: Scanned) -> list[Event]:
    """Take what stands before the last run in a file for handled, and keep what was the last.

    Of what stands in the last run as well, its line there counts.
    """
    of_file = [e for e in events if e.hit.file == scanned.file and e.hit.line]
    over = [e for e in of_file if e.hit.last < start]
    told = [e for e in over if not e.handled and e.rule.role is not Role.CONSEQUENCE]
    scanned.roots = tuple(root for root in scanned.roots if root >= start)
    said = max(told, key=lambda e: (not e.generic, e.hit.last), default=None)
    scanned.earlier = said.hit if said is not None else scanned.earlier
    gone = set(map(id, over))
    again = {id(e) for e in of_file if e.hit.offset < start <= e.hit.last}
    return [
        replace(e, handled=True) if id(e) in gone else _at_last(e) if id(e) in again else e
        for e in events
    ]


def _at_last(event: Event) -> Event:
    """Return the event of the last line like that of one."""
    hit = at_last(event.hit)
    _, near = next(_in_place([event.rule], hit), (None, {}))
    groups = {**event.groups, **near, **_groups(event.rule, hit.text, {})}
    own = time_of(f"{hit.stamp} {hit.text}".lstrip(), year=year_of(hit.file))
    return replace(event, hit=hit, groups=groups, time=own or time_near(hit), timed=own is not None)


def _of_the_last_run(events: Sequence[Event], found: Iterable[Scanned]) -> tuple[Event, ...]:
    """Take what an earlier run in the same file has ended with for no failure of the last."""
    last: dict[Path, Hit] = {}
    for hit in (event.hit for event in events if not event.handled and event.hit.line):
        if hit.file not in last or hit.last > last[hit.file].last:
            last[hit.file] = hit
    ended: set[Path] = set()
    for scanned in found:
        if (one := last.get(scanned.file)) is None:
            continue
        reported = any(REPORTS.intersection(hit.rules) for hit in scanned.hits)
        if not reported and began_again(one, scanned.startups, scanned.size):
            ended.add(scanned.file)
            scanned.earlier = one
        elif scanned.roots and _works_since(one, scanned):
            events = _since(scanned.size, events, scanned)
        elif (left_behind(one) and ends_well(one, scanned.size)) or survived(one, scanned.size):
            ended.add(scanned.file)
    return tuple(replace(e, handled=e.handled or e.hit.file in ended) for e in events)


def _works_since(one: Hit, scanned: Scanned) -> bool:
    """Tell whether a program took steps after the last find in a file, and went on well."""
    began = next_run(scanned.file, scanned.excerpts, one.last)
    return began < inf and ends_well(one, scanned.size)


def _without_side_steps(events: Sequence[Event]) -> tuple[Event, ...]:
    """Take what a launcher or a shell tells at the beginning for no failure of the job.

    Only where nobody has a cause or a symptom, and hundreds of good lines follow.
    """
    if any(not e.handled and e.rule.role is not Role.CONSEQUENCE for e in events):
        return tuple(events)
    return tuple(replace(e, handled=e.handled or side_step(e.hit)) for e in events)


def _without_snippets(events: Sequence[Event]) -> list[Event]:
    """Take for no failure of the job what code given to Python, or a command beside it, had raised.

    Only where the script went on for long after it, and something else ended the job then.
    """
    live = [e for e in events if e.hit.line and _may_end(e) and not e.handled]
    last: dict[Path, int] = {}
    for hit in (event.hit for event in live):
        last[hit.file] = max(hit.offset, last.get(hit.file, 0))
    over = {
        id(event)
        for event in live[:_MOST_FOLLOWED]
        if of_snippet(event.hit) and left_behind(event.hit, last[event.hit.file])
    }
    return [replace(e, handled=True) if id(e) in over else e for e in events]


def _ends(event: Event) -> bool:
    """Tell whether hardly anything stands after an error that no rule knows."""
    return event.rule.priority > BARE and good_after(event.hit) <= _MOST_AFTER


def _lived_on(rule: Rule, hit: Hit, size: int) -> bool:
    """Tell whether what a line tells of ended nothing; a launcher's report, whoever took steps."""
    if rule.role is Role.CONSEQUENCE and shell_went_on(hit):
        return True
    if (rule.retried and only_printed(hit, size)) or (rule.closing and told_before(hit, size)):
        return True
    return went_on(replace(hit, rank=None) if rule.id in REPORTS else hit, size)


class _Endings:
    """What the logs tell of a training that came to its end, and what stands after that."""

    def __init__(self, rules: Mapping[str, Rule], scanned: Iterable[Scanned]) -> None:
        self._spans: dict[Path, list[tuple[int, float]]] = {}
        self._whole = False
        self._failed: dict[Path, int] = {}
        """Files in which ranks had failed then, so that others waited until they were ended."""
        self._last: dict[Path, Ending] = {}
        """Endings after which no failure stands."""
        for one in scanned:
            for ending in one.endings:
                until = next_run(one.file, one.excerpts, ending.offset)
                self._spans.setdefault(one.file, []).append((ending.offset, until))
                if until == inf and not _fails_after(rules, one, ending.offset):
                    self._last[one.file] = ending
                if ending.whole and until == inf:
                    self._whole = True
                    if _ended_badly(rules, one, ending.offset):
                        self._failed.setdefault(one.file, ending.offset)

    def cover(self, rule: Rule, hit: Hit) -> bool:
        """Tell whether a find is none: all had gone well, or did so in the end.

        Before another step nothing counts that processes print as they leave; where it is the whole
        job that has reached its goal, nothing at all, unless it had to be ended after a failure.
        """
        if rule.silent:
            return False
        if self._whole:
            return hit.last <= self._failed.get(hit.file, inf)
        spans = self._spans.get(hit.file, ())
        return rule.ending and any(start < hit.offset < until for start, until in spans)

    def came(self, rule: Rule, hit: Hit) -> bool:
        """Tell whether a program went on well after a find until it said that it was through."""
        last = self._last.get(hit.file)
        if last is None or rule.outside:
            return False
        return well_until(hit, last.offset, at_once=rule.closing and last.program)


def _fails_after(rules: Mapping[str, Rule], scanned: Scanned, offset: int) -> bool:
    """Tell whether more than processes print as they leave, or a launcher's report, stands after.

    A report counts wherever it is: a launcher had seen a rank fail.
    """
    told = ((hit, rules[name]) for hit in scanned.hits for name in hit.rules)
    return any(
        (rule.id in REPORTS and not rule.outside)
        or (hit.last > offset and not (rule.ending or rule.closing or rule.silent))
        for hit, rule in told
    )


def _ended_badly(rules: Mapping[str, Rule], scanned: Scanned, offset: int) -> bool:
    after = [rules[hit.rules[0]] for hit in scanned.hits if hit.offset > offset]
    own = [rule for rule in after if rule.role is not Role.CONSEQUENCE and rule.compare is None]
    return any(rule.outside for rule in own) and not all(
        rule.ending or rule.outside for rule in own
    )


def _placed_by(near: Mapping[str, str], hit: Hit) -> None:
    """Give a hit the place that the lines around it name, where its own names none."""
    hit.node = hit.node or near.get("node")
    if hit.rank is None:
        hit.rank = rank_in(near.get("rank", ""))


def _of_another(near: Mapping[str, str]) -> bool:
    """Tell whether what stands around a hit names the rank or node that its line is about."""
    return not near.keys().isdisjoint(("of_rank", "of_node"))


def _taken_back(rule: Rule, hit: Hit, size: int) -> bool:
    """Tell whether what follows the last line like the hit's says that it was dealt with."""
    if rule.resets and passed(hit, size, rule.reset_by):
        return True
    if not rule.unless_next:
        return False
    after = lines_after(replace(hit, offset=hit.last), 1) or ("",)
    return any(pattern.search(text) for text in after for pattern in rule.unless_next)


def _in_place(rules: Iterable[Rule], hit: Hit) -> Iterator[tuple[Rule | None, Mapping[str, str]]]:
    """Yield the rules that find around a hit what they ask for, with the groups of that."""
    around: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    for rule in rules:
        found, asked = [], []
        if rule.near:
            above, below = around = around or lines_around(hit)
            nearest = (hit.text, *reversed(above), *below)
            in_order = (*above, hit.text, *below)
            found = [_told(p, in_order if gathers(p) else nearest) for p in rule.near]
            asked = [told for p, told in zip(rule.near, found, strict=True) if not gathers(p)]
        if rule.frame:
            frames = raised_in(hit)
            asked += [_told(p, frames) for p in rule.frame]
            found += asked[-len(rule.frame) :]
        if rule.trace:
            lines = traceback_of(hit)
            asked += [_told(p, lines) for p in rule.trace]
            found += asked[-len(rule.trace) :]
        if not asked or any(told is not None for told in asked):
            told_by = (told.items() for told in reversed(found) if told)
            groups = {name: text for of_one in told_by for name, text in of_one if text}
            if _as_asked(rule, hit.text, groups):
                yield rule, groups


def _as_asked(rule: Rule, text: str, around: Mapping[str, str]) -> bool:
    """Tell whether each group `same_NAME` of what is around is what `NAME` of the line is."""
    same = {name[5:]: value for name, value in around.items() if name.startswith("same_")}
    of_line = match.groupdict() if same and (match := rule.match(text)) else {}
    return all(of_line.get(name) == value for name, value in same.items())


def _told(pattern: Pattern, lines: Iterable[str]) -> Mapping[str, str] | None:
    """Return the groups of the first line that matches; `all_` and `last_` ones are of them all."""
    matches = (match for line in lines if (match := pattern.search(line)))
    first = next(matches, None)
    if first is None or not gathers(pattern):
        return None if first is None else first.groupdict()
    told: dict[str, list[str]] = {}
    for match in (first, *matches):
        for name, text in match.groupdict().items():
            told.setdefault(name, []).append(text)
    return {
        OF_MANY.sub("", name): ", ".join(dict.fromkeys(texts))
        if name.startswith("all_")
        else texts[-1]
        for name, texts in told.items()
    }


def _event_of(rules: Mapping[str, Rule], fact: Fact, folder: Path) -> Event | None:
    matching = [rule for rule in rules.values() if rule.match(fact.text)]
    matching.sort(key=lambda one: -one.priority)
    hit = Hit(rules=(), file=fact.file or folder, line=0, offset=0, text=fact.text)
    rule, near = next(_in_place(matching, hit), (None, {}))
    if rule is None:
        return None
    hit.rules = (rule.id,)
    groups = {**near, **_groups(rule, fact.text, {})}
    rank = rank_in(groups.get("rank", ""))
    return Event(
        rule=rule,
        groups=groups,
        hit=hit,
        node=groups.get("node") or fact.node,
        rank=fact.rank if rank is None else rank,
        time=fact.time,
        timed=fact.time is not None,
    )


def _groups(rule: Rule, text: str, more: Mapping[str, str]) -> Mapping[str, str]:
    match = rule.match(text)
    groups = match.groupdict() if match is not None else {}
    return {**{name: value for name, value in groups.items() if value}, **more}


_Where = int | str
"""A rank, or a node, or the file of one without a name."""


class _Comparison:
    """What rules that compare nodes need to know of all logs together."""

    def __init__(self, rules: Mapping[str, Rule], found: Sequence[tuple[Source, Scanned]]) -> None:
        self._rules = rules
        named = {source.node for source, _ in found if source.node}
        self._short = {name.partition(".")[0]: name for name in named}
        self._said: dict[tuple[str, str], dict[_Where, set[tuple[str, str]]]] = {}
        self._nodes: dict[str, set[str]] = {}
        for source, scanned in found:
            for hit in scanned.hits:
                for name in hit.rules:
                    self._note(name, source, hit)
        self._all = {
            source.node or str(source.path)
            for source, scanned in found
            if scanned.size and not source.scheduler
        }
        self._mixed: set[str] = set()  # files in which only some lines say of which node they are
        if any(rules[name].compare is Compare.SOME_NODES for name in self._nodes):
            for source, _ in found:
                if source.node is None and (names := nodes_named(source.path)):
                    self._mixed.add(str(source.path))
                    self._all = (self._all - self._mixed) | names

    def holds(self, name: str, hit: Hit) -> bool:
        """Tell whether what a rule asks of the other nodes is so."""
        rule = self._rules[name]
        if rule.compare is Compare.SOME_NODES:
            nodes = self._nodes[name]
            return not nodes & self._mixed and bool(self._all - nodes)
        if rule.compare is Compare.DIFFERS:
            return len(self._differing(name, hit)) > 1
        return True

    def values(self, rule: Rule, hit: Hit) -> Mapping[str, str]:
        """Return the engine's own fields for the texts of a rule."""
        if rule.compare is not Compare.DIFFERS:
            return {}
        said: dict[str, list[_Where]] = {}
        for place, (value, number) in self._differing(rule.id, hit).items():
            said.setdefault(f"{value} (number {number})" if number else value, []).append(place)
        parts = [f"{value} on {_named(places)}" for value, places in sorted(said.items())]
        return {"values": ", ".join(parts)}

    def node(self, source: Source, hit: Hit) -> str | None:
        """Return the node of a hit, under the name that the job has for it."""
        if hit.node is None:
            return source.node
        return self._short.get(hit.node.partition(".")[0], hit.node)

    def _note(self, name: str, source: Source, hit: Hit) -> None:
        rule = self._rules[name]
        node = self.node(source, hit) or str(source.path)
        if rule.compare is Compare.SOME_NODES:
            self._nodes.setdefault(name, set()).add(node)
        elif rule.compare is Compare.DIFFERS and hit.value is not None:
            what, *told = hit.value
            place = node if hit.rank is None else hit.rank
            said = self._said.setdefault((name, what), {})
            said.setdefault(place, set()).add((told[0], told[1]))

    def _differing(self, name: str, hit: Hit) -> dict[_Where, tuple[str, str]]:
        """Return what each place says, where all say one thing each and not the same."""
        said = self._said.get((name, hit.value[0] if hit.value else ""), {})
        one = {place: next(iter(values)) for place, values in said.items() if len(values) == 1}
        numbers = {int(number or 0) for _, number in one.values()}
        alike = len(numbers) == 1
        told = {value if alike else value.partition(",")[0] for value, _ in one.values()}
        near = bool(numbers) and max(numbers) - min(numbers) <= 1
        return one if near and len(told) > 1 else {}


def _named(places: Sequence[_Where]) -> str:
    ranks = [place for place in places if isinstance(place, int)]
    nodes = [place for place in places if isinstance(place, str)]
    words = [hostlist.fold_set(nodes)] if nodes else []
    if ranks:
        words.append(ranks_in_words(ranks))
    return " and ".join(words)
