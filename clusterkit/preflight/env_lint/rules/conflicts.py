"""Settings that contradict each other, or do nothing without another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterkit.core.findings import Verdict
from clusterkit.preflight.env_lint.rules.base import (
    Conflicts,
    Rule,
    Settings,
    Violation,
    alone,
    number,
    rule,
    together,
)
from clusterkit.preflight.env_lint.setting import Format, Mistake, Setting, Source
from clusterkit.preflight.env_lint.variables import Variable

_BUFFER_BYTES = 4 << 20
_MOST_SOCKETS = 64


@together("NCCL143")
def _debug_file(settings: Settings) -> Conflicts:
    setting = settings.get("NCCL_DEBUG_FILE")
    if setting is None or not setting.value:
        return
    if "NCCL_DEBUG" not in settings:
        yield setting.name, "does nothing without NCCL_DEBUG", "remove it, or set both"
    if "%p" not in setting.value or "%h" not in setting.value:
        hint = "put %h (host) and %p (pid) into its name"
        yield setting.name, "all ranks write over one file", hint


@together("NCCL145")
def _sockets(settings: Settings) -> Conflicts:
    names = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    threads, sockets = (number(settings.get(name)) for name in names)
    if threads and sockets and threads * sockets > _MOST_SOCKETS:
        more = f"{threads} threads with {sockets} sockets each are more than {_MOST_SOCKETS}"
        yield names[1], more, f"lower {' or '.join(names)}"


@together("NCCL146")
def _channels(settings: Settings) -> Conflicts:
    for low, high in (("MIN_CTAS", "MAX_CTAS"), ("MIN_NCHANNELS", "MAX_NCHANNELS")):
        fewest, most = number(settings.get(f"NCCL_{low}")), number(settings.get(f"NCCL_{high}"))
        if fewest is not None and most is not None and fewest > most:
            yield f"NCCL_{low}", f"more than NCCL_{high}={most}", f"lower it, or raise NCCL_{high}"


@together("NCCL152")
def _adaptive_routing(settings: Settings) -> Conflicts:
    threshold = number(settings.get("NCCL_IB_AR_THRESHOLD"))
    buffer = number(settings.get("NCCL_BUFFSIZE")) or _BUFFER_BYTES
    if threshold is not None and threshold > buffer:
        summary = f"above the buffer size ({buffer}): adaptive routing is off"
        hint = "lower it; NCCL_IB_ADAPTIVE_ROUTING=0 says it plainly"
        yield "NCCL_IB_AR_THRESHOLD", summary, hint


@together("NCCL155")
def _visible(settings: Settings) -> Conflicts:
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    given = [settings[name] for name in names if name in settings and settings[name].value]
    for setting in given[1:]:
        if setting.value != given[0].value:
            first = f"{given[0].name}={given[0].value}"
            yield setting.name, f"differs from {first}", "set only one of them"


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
