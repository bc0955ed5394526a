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
    word,
)
from clusterkit.preflight.env_lint.setting import Format, Mistake, Setting, Source
from clusterkit.preflight.env_lint.variables import Variable

_BUILT_IN_NETS = frozenset({"ib", "socket"})
_BUFFER_BYTES = 4 << 20
_MOST_SOCKETS = 64
_GID_HELPERS = ("NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM")


@together("NCCL141")
def _gid(settings: Settings) -> Conflicts:
    index = number(settings.get("NCCL_IB_GID_INDEX"))
    for name in _GID_HELPERS:
        if index is not None and index >= 0 and name in settings:
            yield name, "ignored, because NCCL_IB_GID_INDEX is set", "set one of the two"


@together("NCCL142")
def _subsystems(settings: Settings) -> Conflicts:
    level = settings.get("NCCL_DEBUG")
    if not word(settings, "NCCL_DEBUG_SUBSYS") or (level and level.value is None):
        return
    if word(settings, "NCCL_DEBUG") not in {"info", "trace"}:
        yield "NCCL_DEBUG_SUBSYS", "does nothing without NCCL_DEBUG=INFO", "remove it, or set both"


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


@together("NCCL144")
def _oob(settings: Settings) -> Conflicts:
    enabled = number(settings.get("NCCL_OOB_NET_ENABLE")) == 1
    if "NCCL_OOB_NET_IFNAME" in settings and not enabled:
        summary = "ignored without NCCL_OOB_NET_ENABLE=1"
        yield "NCCL_OOB_NET_IFNAME", summary, "set both, or remove it"


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
        least, most = number(settings.get(f"NCCL_{low}")), number(settings.get(f"NCCL_{high}"))
        if least is not None and most is not None and least > most:
            yield f"NCCL_{low}", f"more than NCCL_{high}={most}", f"lower it, or raise NCCL_{high}"


@together("NCCL147")
def _unused_hcas(settings: Settings) -> Conflicts:
    off = "NCCL_NET=Socket" if word(settings, "NCCL_NET") == "socket" else ""
    if number(settings.get("NCCL_IB_DISABLE")) == 1:
        off = "NCCL_IB_DISABLE=1"
    if "NCCL_IB_HCA" in settings and off:
        yield "NCCL_IB_HCA", f"unused, because of {off}", f"remove {off}, or this"


@together("NCCL148")
def _net_plugin(settings: Settings) -> Conflicts:
    net = word(settings, "NCCL_NET")
    if net and net not in _BUILT_IN_NETS and word(settings, "NCCL_NET_PLUGIN") == "none":
        summary = "names a plug-in, and NCCL_NET_PLUGIN=none loads none"
        yield "NCCL_NET", summary, "remove NCCL_NET_PLUGIN=none"


@together("NCCL152")
def _adaptive_routing(settings: Settings) -> Conflicts:
    threshold = number(settings.get("NCCL_IB_AR_THRESHOLD"))
    buffer = number(settings.get("NCCL_BUFFSIZE")) or _BUFFER_BYTES
    if threshold is not None and threshold > buffer:
        summary = f"above the buffer size ({buffer}): adaptive routing is off"
        hint = "lower it; NCCL_IB_ADAPTIVE_ROUTING=0 says it plainly"
        yield "NCCL_IB_AR_THRESHOLD", summary, hint


@together("NCCL154")
def _blocking_wait(settings: Settings) -> Conflicts:
    handling = number(settings.get("TORCH_NCCL_ASYNC_ERROR_HANDLING"))
    if word(settings, "TORCH_NCCL_BLOCKING_WAIT") in {"1", "true", "yes", "y", "t"} and handling:
        summary = "TORCH_NCCL_ASYNC_ERROR_HANDLING is set as well; only one can act"
        yield "TORCH_NCCL_BLOCKING_WAIT", summary, "remove TORCH_NCCL_BLOCKING_WAIT"


@together("NCCL155")
def _visible(settings: Settings) -> Conflicts:
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    given = [settings[name] for name in names if name in settings and settings[name].value]
    for setting in given[1:]:
        if setting.value != given[0].value:
            first = f"{given[0].name}={given[0].value}"
            yield setting.name, f"differs from {first}", "set only one of them"


@together("NCCL156")
def _huge_pages(settings: Settings) -> Conflicts:
    names = ("FI_EFA_FORK_SAFE", "RDMAV_FORK_SAFE", "IBV_FORK_SAFE", "FI_EFA_USE_HUGE_PAGE")
    *fork, huge = (name if _yes(settings, name) else "" for name in names)
    if huge and any(fork):
        first = next(filter(None, fork))
        yield huge, f"beside {first} libfabric aborts the process", "remove both"


def _yes(settings: Settings, name: str) -> bool:
    return word(settings, name) in {"1", "true", "yes", "on"}


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
