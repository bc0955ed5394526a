"""Apply the rules to what the sources set. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations_with_replacement, islice

from clusterkit.core.data import read_table
from clusterkit.core.findings import Verdict
from clusterkit.preflight.env_lint.rules import conflicts, values
from clusterkit.preflight.env_lint.rules.base import Rule, Violation, by_table
from clusterkit.preflight.env_lint.setting import Format, Setting, Source, Trait, reachable
from clusterkit.preflight.env_lint.variables import Kind, find_variable

_CODED = (one for module in (values, conflicts) for one in vars(module).values())
_RULES = (*(one for one in _CODED if isinstance(one, Rule)), *by_table())
RULES = tuple(sorted(_RULES, key=lambda rule: rule.id))
_MOST_RUNS = 64
"""Ways through a script that conflicts are looked for in; scripts have a handful."""

_MEANT = {
    (row["rule"], row["name"], row["trait"]): Verdict(row["verdict"])
    for row in read_table(__file__, "meant.tsv")
}
_DEAD = frozenset({Kind.REMOVED, Kind.TYPO, Kind.TORCH_RENAMED})


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """One thing that the lint has to say."""

    id: str
    rule: str
    name: str
    """Of the variable."""
    value: str | None
    source: str
    line: int | None
    verdict: Verdict
    summary: str
    hint: str


def lint(sources: Sequence[Source], *, allowed: Sequence[str] = ()) -> tuple[LintFinding, ...]:
    """Return what is to be said about `sources`, of which earlier ones win over later ones.

    In the order of the sources and their lines. Names that a glob of `allowed` matches are left
    alone.
    """
    settings = [setting for source in sources for setting in source.settings]
    found = [
        (rule, setting, violation)
        for setting in settings
        for rule in RULES
        if rule.alone is not None
        for violation in rule.alone(setting, find_variable(setting.name))
    ]
    found += conflicts.overridden(sources)
    for run in _runs(sources):
        for rule in RULES:
            together = rule.together(run) if rule.together is not None else ()
            found += [(rule, run[name], Violation(text, hint)) for name, text, hint in together]
    traits = {id(setting): source.traits for source in sources for setting in source.settings}
    place = {id(setting): index for index, setting in enumerate(settings)}
    found.sort(key=lambda one: (place[id(one[1])], one[0].id))
    return tuple(
        dict.fromkeys(
            _finding(rule, setting, violation, traits[id(setting)])
            for rule, setting, violation in found
            if not any(fnmatchcase(setting.name, glob) for glob in allowed)
        )
    )


def _runs(sources: Sequence[Source]) -> Iterator[Mapping[str, Setting]]:
    """Yield what is set at the same time, for ways through the branches of scripts.

    Every two branches that can be taken in one run are together in one of them.
    """
    branches = dict.fromkeys(s.branch for source in sources for s in source.settings if s.branch)
    pairs = combinations_with_replacement(branches or [()], 2)
    ways = (dict(one + other) for one, other in pairs if reachable(dict(one), other))
    for arms in islice(ways, _MOST_RUNS):
        run: dict[str, Setting] = {}
        for source in reversed(sources):
            settings = source.settings
            if source.format is Format.CONF:
                settings = settings[::-1]
            for setting in settings:
                if reachable(arms, setting.branch):
                    arms |= dict(setting.branch)
                    run[setting.name] = setting
        known = {name: find_variable(name) for name in run}
        yield {
            n: run[n] for n, variable in known.items() if variable and variable.kind not in _DEAD
        }


def _finding(
    rule: Rule, setting: Setting, violation: Violation, traits: Sequence[Trait]
) -> LintFinding:
    names = (setting.name, "*")
    meant = (_MEANT.get((rule.id, name, trait)) for trait in traits for name in names)
    return LintFinding(
        id=rule.id,
        rule=rule.name,
        name=setting.name,
        value=setting.value,
        source=setting.source,
        line=setting.line,
        verdict=next(filter(None, meant), violation.verdict or rule.verdict),
        summary=violation.summary,
        hint=violation.hint,
    )
