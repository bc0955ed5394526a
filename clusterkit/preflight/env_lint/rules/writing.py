"""How a setting was written down, and which wins where one variable is set in several places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterkit.core.findings import Verdict
from clusterkit.preflight.env_lint.rules.base import Rule, Violation, alone, rule
from clusterkit.preflight.env_lint.setting import Format, Mistake, Setting, Source
from clusterkit.preflight.env_lint.variables import Variable


@alone("NCCL135")
def _export_kept(setting: Setting, _: Variable | None) -> Iterator[Violation]:
    if Mistake.EXPORT_KEPT in setting.mistakes:
        in_conf = setting.format is Format.CONF
        yield Violation(
            f"`export` becomes part of the name{'' if in_conf else ' for docker'}",
            f"write {setting.name}=...",
            Verdict.FAIL if in_conf else None,
        )


_TWICE = rule("NCCL138")
_SHADOWED = rule("NCCL139")


def overridden(sources: Sequence[Source]) -> Iterator[tuple[Rule, Setting, Violation]]:
    """Yield settings that another one of the same name beats; earlier sources win."""
    winners: dict[str, Setting] = {}
    for source in sources:
        own: dict[str, Setting] = {}
        for setting in source.settings:
            before = own.get(setting.name)
            if before is not None and source.format in {Format.ENV_FILE, Format.PAM, Format.CONF}:
                yield from _twice(before, setting)
            # NCCL takes the first line of a file, docker the last.
            if before is None or source.format is not Format.CONF:
                own[setting.name] = setting
        for name, setting in own.items():
            winner = winners.setdefault(name, setting)
            if winner.value != setting.value:
                beaten = f"beaten by {winner.source}, which says {winner.value!r}"
                yield _SHADOWED, setting, Violation(beaten, "remove one of them")


def _twice(before: Setting, setting: Setting) -> Iterator[tuple[Rule, Setting, Violation]]:
    if before.value != setting.value:
        pair = (before, setting)
        loser, winner = reversed(pair) if setting.format is Format.CONF else pair
        beaten = f"set again in line {winner.line}, which wins"
        yield _TWICE, loser, Violation(beaten, "remove one of them")
