"""Settings that contradict each other, or do nothing without another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterkit.core.findings import Verdict
from clusterkit.preflight.env_lint.rules.base import Rule, Together, number
from clusterkit.preflight.env_lint.setting import Setting

Settings = Mapping[str, Setting]
Found = Iterator[tuple[str, str, str]]
"""Name of the variable, summary, hint."""

_OUTPUT = frozenset({"INFO", "TRACE"})
_BUILT_IN_NETS = frozenset({"ib", "socket"})
_BUFFER_BYTES = 4 << 20
_MOST_SOCKETS = 64
_GID_HELPERS = ("NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM")


def _word(settings: Settings, name: str) -> str:
    setting = settings.get(name)
    return (setting.value or "").strip().lower() if setting else ""


def _is(settings: Settings, name: str, value: int) -> bool:
    return number(settings.get(name)) == value


def _gid(settings: Settings) -> Found:
    index = number(settings.get("NCCL_IB_GID_INDEX"))
    if index is None or index < 0:
        return
    for name in _GID_HELPERS:
        if name in settings:
            yield name, "ignored, because NCCL_IB_GID_INDEX is set", "set one of the two"


def _subsystems(settings: Settings) -> Found:
    setting = settings.get("NCCL_DEBUG_SUBSYS")
    level = settings.get("NCCL_DEBUG")
    if setting is None or not setting.value or (level and level.value is None):
        return
    if _word(settings, "NCCL_DEBUG").upper() not in _OUTPUT:
        yield setting.name, "does nothing without NCCL_DEBUG=INFO", "remove it, or set both"


def _debug_file(settings: Settings) -> Found:
    setting = settings.get("NCCL_DEBUG_FILE")
    if setting is None or not setting.value:
        return
    if "NCCL_DEBUG" not in settings:
        yield setting.name, "does nothing without NCCL_DEBUG", "remove it, or set both"
    if "%p" not in setting.value or "%h" not in setting.value:
        yield (
            setting.name,
            "all ranks write over one file",
            "put %h (host) and %p (pid) into its name",
        )


def _oob(settings: Settings) -> Found:
    setting = settings.get("NCCL_OOB_NET_IFNAME")
    if setting and not _is(settings, "NCCL_OOB_NET_ENABLE", 1):
        yield setting.name, "ignored without NCCL_OOB_NET_ENABLE=1", "set both, or remove it"


def _sockets(settings: Settings) -> Found:
    threads = number(settings.get("NCCL_SOCKET_NTHREADS"))
    sockets = number(settings.get("NCCL_NSOCKS_PERTHREAD"))
    if threads and sockets and threads * sockets > _MOST_SOCKETS:
        yield (
            "NCCL_NSOCKS_PERTHREAD",
            f"{threads} threads with {sockets} sockets each are more than {_MOST_SOCKETS}",
            "lower NCCL_SOCKET_NTHREADS or NCCL_NSOCKS_PERTHREAD",
        )


def _ctas(settings: Settings) -> Found:
    for low, high in (("MIN_CTAS", "MAX_CTAS"), ("MIN_NCHANNELS", "MAX_NCHANNELS")):
        least, most = number(settings.get(f"NCCL_{low}")), number(settings.get(f"NCCL_{high}"))
        if least is not None and most is not None and least > most:
            yield f"NCCL_{low}", f"more than NCCL_{high}={most}", f"lower it, or raise NCCL_{high}"


def _unused_hcas(settings: Settings) -> Found:
    setting = settings.get("NCCL_IB_HCA")
    if setting is None:
        return
    off = "NCCL_IB_DISABLE=1" if _is(settings, "NCCL_IB_DISABLE", 1) else ""
    off = off or ("NCCL_NET=Socket" if _word(settings, "NCCL_NET") == "socket" else "")
    if off:
        yield setting.name, f"unused, because of {off}", f"remove {off}, or this"


def _net_plugin(settings: Settings) -> Found:
    net = _word(settings, "NCCL_NET")
    if net and net not in _BUILT_IN_NETS and _word(settings, "NCCL_NET_PLUGIN") == "none":
        yield (
            "NCCL_NET",
            "names a plug-in, and NCCL_NET_PLUGIN=none loads none",
            "remove NCCL_NET_PLUGIN=none",
        )


def _mnnvl(settings: Settings) -> Found:
    if _is(settings, "NCCL_MNNVL_ENABLE", 1) and _is(settings, "NCCL_CUMEM_ENABLE", 0):
        yield (
            "NCCL_MNNVL_ENABLE",
            "needs NCCL_CUMEM_ENABLE, which is 0",
            "remove NCCL_CUMEM_ENABLE=0",
        )


def _collnet(settings: Settings) -> Found:
    if _is(settings, "NCCL_COLLNET_ENABLE", 1) and _word(settings, "NCCL_NET_PLUGIN") == "none":
        yield (
            "NCCL_COLLNET_ENABLE",
            "needs the SHARP plug-in, and NCCL_NET_PLUGIN=none loads none",
            "remove NCCL_NET_PLUGIN=none",
        )


def _graphs(settings: Settings) -> Found:
    if _is(settings, "NCCL_GRAPH_MIXING_SUPPORT", 1) and _is(
        settings, "NCCL_GRAPH_STREAM_ORDERING", 0
    ):
        yield (
            "NCCL_GRAPH_MIXING_SUPPORT",
            "does not go with NCCL_GRAPH_STREAM_ORDERING=0",
            "remove one of them",
        )


def _adaptive_routing(settings: Settings) -> Found:
    threshold = number(settings.get("NCCL_IB_AR_THRESHOLD"))
    buffer = number(settings.get("NCCL_BUFFSIZE")) or _BUFFER_BYTES
    if threshold is not None and threshold > buffer:
        yield (
            "NCCL_IB_AR_THRESHOLD",
            f"above the buffer size ({buffer}): adaptive routing is off",
            "lower it; NCCL_IB_ADAPTIVE_ROUTING=0 says it plainly",
        )


def _multi_rank(settings: Settings) -> Found:
    if _is(settings, "NCCL_MULTI_RANK_GPU_ENABLE", 1) and _is(settings, "NCCL_NVLS_ENABLE", 1):
        yield (
            "NCCL_MULTI_RANK_GPU_ENABLE",
            "fails at start with NCCL_NVLS_ENABLE=1",
            "remove NCCL_NVLS_ENABLE",
        )


def _blocking_wait(settings: Settings) -> Found:
    handling = number(settings.get("TORCH_NCCL_ASYNC_ERROR_HANDLING"))
    if _word(settings, "TORCH_NCCL_BLOCKING_WAIT") in {"1", "true", "yes", "y", "t"} and handling:
        yield (
            "TORCH_NCCL_BLOCKING_WAIT",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING is set as well; only one can act",
            "remove TORCH_NCCL_BLOCKING_WAIT",
        )


def _huge_pages(settings: Settings) -> Found:
    huge = settings.get("FI_EFA_USE_HUGE_PAGE")
    fork = [
        n for n in ("FI_EFA_FORK_SAFE", "RDMAV_FORK_SAFE", "IBV_FORK_SAFE") if _yes(settings, n)
    ]
    if huge and fork and _yes(settings, huge.name):
        yield huge.name, f"beside {fork[0]} libfabric aborts the process", "remove both"


def _yes(settings: Settings, name: str) -> bool:
    return _word(settings, name) in {"1", "true", "yes", "on"}


def _visible(settings: Settings) -> Found:
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    given = [settings[name] for name in names if name in settings and settings[name].value]
    for setting in given[1:]:
        if setting.value != given[0].value:
            yield (
                setting.name,
                f"differs from {given[0].name}={given[0].value}",
                "set only one of them",
            )


def _rule(number_: int, name: str, verdict: Verdict, what: str, why: str, judge: Together) -> Rule:
    return Rule(
        id=f"NCCL{number_}",
        name=name,
        verdict=verdict,
        what=what,
        why=why,
        fix="Follow the hint: keep the one of the two that you mean.",
        together=judge,
    )


RULES = (
    _rule(
        141, "gid-index-wins", Verdict.WARN, "an address family or RoCE version beside a GID index",
        "NCCL looks at them only to choose a GID by itself.", _gid,
    ),
    _rule(
        142, "subsystems-without-info", Verdict.WARN, "NCCL_DEBUG_SUBSYS without NCCL_DEBUG=INFO",
        "It only filters the output of INFO and TRACE.", _subsystems,
    ),
    _rule(
        143, "debug-file", Verdict.WARN, "NCCL_DEBUG_FILE without %h and %p, or without NCCL_DEBUG",
        "Every rank opens the file anew and overwrites what others wrote.", _debug_file,
    ),
    _rule(
        144, "oob-not-enabled", Verdict.WARN, "NCCL_OOB_NET_IFNAME without NCCL_OOB_NET_ENABLE=1",
        "The interface is used for out-of-band traffic only where that is enabled.", _oob,
    ),
    _rule(
        145, "too-many-sockets", Verdict.WARN, "more than 64 sockets for one connection",
        "NCCL allows at most 64 in all: threads times sockets per thread.", _sockets,
    ),
    _rule(
        146, "minimum-above-maximum", Verdict.WARN, "a minimum of channels above the maximum",
        "NCCL then silently uses another number than both.", _ctas,
    ),
    _rule(
        147, "hcas-unused", Verdict.WARN, "NCCL_IB_HCA where InfiniBand is switched off",
        "The traffic goes over TCP, whatever HCAs are named.", _unused_hcas,
    ),
    _rule(
        148, "net-without-plugin", Verdict.FAIL, "NCCL_NET names a plug-in that is not loaded",
        "NCCL fails at start when no network of that name is there.", _net_plugin,
    ),
    _rule(
        149, "mnnvl-without-cumem", Verdict.FAIL, "multi-node NVLink without CUDA's memory API",
        "NCCL needs cuMem to share memory between nodes, and fails at start.", _mnnvl,
    ),
    _rule(
        150, "collnet-without-plugin", Verdict.WARN, "CollNet without a plug-in that offers it",
        "Reductions in the network come from the SHARP plug-in.", _collnet,
    ),
    _rule(
        151, "graph-ordering", Verdict.WARN, "graph mixing without stream ordering",
        "Mixing captured and other launches rests on the ordering of streams.", _graphs,
    ),
    _rule(
        152, "adaptive-routing-off", Verdict.WARN, "an adaptive-routing threshold above the buffer",
        "No message is ever larger than the buffer, so none is routed adaptively.",
        _adaptive_routing,
    ),
    _rule(
        153, "multi-rank-with-nvls", Verdict.FAIL, "several ranks on one GPU with NVLS forced",
        "NCCL fails at start with both.", _multi_rank,
    ),
    _rule(
        154, "blocking-wait", Verdict.WARN, "PyTorch's blocking beside its asynchronous wait",
        "PyTorch has one way of ending a collective that hangs, and takes one of them.",
        _blocking_wait,
    ),
    _rule(
        155, "visible-devices", Verdict.WARN, "lists of visible GPUs that differ",
        "CUDA's, HIP's and ROCr's lists each hide devices, one after the other.", _visible,
    ),
    _rule(
        156, "huge-pages-and-fork", Verdict.FAIL, "EFA's huge pages beside support for fork",
        "On kernels before 5.13 the two corrupt memory, and libfabric ends the process.",
        _huge_pages,
    ),
)  # fmt: skip
