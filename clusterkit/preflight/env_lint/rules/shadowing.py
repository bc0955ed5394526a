"""One variable, set in several places: which of them wins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterkit.core.findings import Verdict
from clusterkit.preflight.env_lint.rules.base import Remark, Rule
from clusterkit.preflight.env_lint.setting import Format, Setting, Source


def overridden(sources: Sequence[Source]) -> Iterator[tuple[Rule, Setting, Remark]]:
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
                yield SHADOWED, setting, Remark(summary=beaten, hint="remove one of them")


def _twice(before: Setting, setting: Setting) -> Iterator[tuple[Rule, Setting, Remark]]:
    if before.value == setting.value:
        return
    loser, winner = (setting, before) if setting.format is Format.CONF else (before, setting)
    beaten = f"set again in line {winner.line}, which wins"
    yield TWICE, loser, Remark(summary=beaten, hint="remove one of them")


TWICE = Rule(
    id="NCCL138",
    name="set-twice",
    verdict=Verdict.WARN,
    what="a name twice in one env file or nccl.conf, with different values",
    why="docker takes the last line, NCCL the first one of its own files.",
    fix="Remove one of the lines.",
)
SHADOWED = Rule(
    id="NCCL139",
    name="shadowed",
    verdict=Verdict.WARN,
    what="a value in nccl.conf that the environment, or another file, beats",
    why="NCCL takes the environment first, then ~/.nccl.conf (or NCCL_CONF_FILE), then "
    "/etc/nccl.conf.",
    fix="Remove one of them.",
)
RULES = (TWICE, SHADOWED)
