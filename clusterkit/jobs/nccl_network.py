"""Read from the log of a job which network NCCL took between its nodes, and judge a slow one.

NCCL tells it with NCCL_DEBUG=INFO alone (`Using network IB`, `via NET/IB/0/GDRDMA`), as it makes a
communicator; without, nothing is known, and nothing is said. Sources: NCCL, src/plugin/net.cc,
src/transport/net.cc.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from clusterkit.core import files, reading
from clusterkit.core.records import object_of, text_of, texts_of
from clusterkit.executors.run.runfolder import PREFLIGHT, RunFolder, listed, read_submission

HEAD, _TAIL = 1 << 22, 1 << 20
"""Bytes of the log that are read: NCCL starts before the training does, or was started again."""
_RESTART = "--- clusterkit: restart "
_MARK = "NCCL INFO "
_USING = re.compile(
    r"NCCL INFO (?:Using network|Assigned NET plugin) ([\w. -]{1,64}?)(?: to comm)?\s*$",
    re.MULTILINE,
)
_CHANNEL = re.compile(r"NCCL INFO [^\n]{1,120} via NET/[\w. -]{1,64}/\d+[^\n/]{0,16}(/GDRDMA)?")
_NO_DEVICE = re.compile(r"NCCL INFO NET/IB ?: No device found")
_NO_PLUGIN = re.compile(
    r"NCCL INFO NET/Plugin ?: (?:No plugin found|Could not find|Plugin load [^\n]{0,200}returned 2)"
)
_HOST = re.compile(r"(?<![\w.-])([\w.-]{1,253}+):\d+:\d+ \[\d+\] $")
_TCP = "socket"
_SWITCHES = (("NCCL_NET", _TCP), ("NCCL_NET_PLUGIN", "none"), ("NCCL_IB_DISABLE", "1"))
_LOOK = "; clusterkit preflight --select nccl,ib tells why"
_PORTS_UP = "IB002"
"""The check of preflight that passes where RDMA ports are up as they should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network that NCCL took."""

    name: str
    """As NCCL calls it: `Socket`, `IB`, or what a plug-in is called, such as `Libfabric`."""
    gpudirect: bool | None
    """Whether it goes right to the memory of GPUs; None where no channel was told."""
    warning: str | None
    """What is wrong with it: it is TCP, and the nodes have better."""

    def __str__(self) -> str:
        """Return it in words."""
        how = {True: ", GPUDirect RDMA", False: ", without GPUDirect RDMA", None: ""}
        return f"NET/{self.name}{how[self.gpudirect]}"


class NcclLog:
    """What NCCL says of its network in a log that is read piece by piece."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._forget()

    def _forget(self) -> None:
        self._name: str | None = None
        self._host = ""
        self._gpudirect: bool | None = None
        self._missed: dict[str, None] = {}

    def take(self, text: str) -> None:
        """Read more of the log, whole lines."""
        _, restart, rest = text.rpartition(_RESTART)
        if restart:
            self._forget()
        if _MARK not in rest:
            return
        for found in _USING.finditer(rest):
            self._name = found[1]
            before = rest[max(0, found.start() - 300) : found.start()].rpartition("\n")[2]
            host = _HOST.search(before)
            self._host = host[1] if host else ""
        for found in _CHANNEL.finditer(rest):
            self._gpudirect = bool(self._gpudirect or found[1])
        for pattern, what in ((_NO_PLUGIN, "plug-in"), (_NO_DEVICE, "RDMA device")):
            if pattern.search(rest):
                self._missed[what] = None

    @property
    def told(self) -> bool:
        """Whether the network is known."""
        return self._name is not None

    def network(self, run: RunFolder) -> Network | None:
        """Return the network of the job in `run`; None where nothing has told it."""
        if self._name is None:
            return None
        fabric = _fabric(run, self._host) if self._name.lower() == _TCP else None
        warning = None
        if fabric is not None:
            missed = f"NCCL found no {' and no '.join(self._missed)}" if self._missed else ""
            wanted = _wanted(run)
            why = wanted or missed
            warning = f"NCCL goes over TCP (NET/{self._name}) between nodes, though {fabric}"
            warning += (f": {why}" if why else "") + ("" if wanted else _LOOK)
        return Network(name=self._name, gpudirect=self._gpudirect, warning=warning)


def network_of(run: RunFolder) -> Network | None:
    """Return the network that NCCL took in the last attempt of a job; None where none is told.

    Reads the beginning and the end of the first node's log.
    """
    path, told = run.log(0), NcclLog()
    text = reading.read_start(path, HEAD).decode(errors="replace")
    if reading.size_of(path) > HEAD:
        text += "\n" + reading.read_end(path, _TAIL).decode(errors="replace")
        submission = read_submission(run)
        again = submission is not None and submission.most_attempts > 1
        if again and listed(run.failures) and _RESTART not in text:
            return None
    told.take(text)
    return told.network(run)


def document_of(network: Network | None) -> dict[str, Any] | None:
    """Return what `--json` tells of a network."""
    return asdict(network) if network is not None else None


def _fabric(run: RunFolder, host: str) -> str | None:
    """Return in words why the nodes of a job have a fast fabric; None where nobody knows of one."""
    submission = read_submission(run)
    if submission is None or max(submission.nodes, submission.max_nodes or 0) < 2:
        return None
    plan = files.read_json(run.plan) or {}
    cluster = object_of(plan, "cluster")
    platform, name = text_of(cluster, "platform") or "", text_of(cluster, "instance_type") or ""
    # Loads what reads configurations, and few jobs use TCP.
    from clusterkit.config.platforms import fabric_of, instance_of, is_file_name  # noqa: PLC0415

    if not (is_file_name(platform) and run.foreign is not None):
        fabric = fabric_of(instance_of(platform, name))
        if fabric:
            return f"{name} has {fabric}"
    report = files.read_json(run.path / PREFLIGHT) or {}
    if host and _is_up(report.get("findings"), host):
        return f"the RDMA ports of {host} are up ({_PORTS_UP})"
    return None


def _is_up(findings: Any, host: str) -> bool:
    """Tell whether preflight found the RDMA ports of a node up; names may have a domain or not."""
    passed = (
        one
        for one in (findings if isinstance(findings, list) else ())
        if isinstance(one, dict) and (one.get("id"), one.get("verdict")) == (_PORTS_UP, "pass")
    )
    short = host.partition(".")[0]
    return any(node.partition(".")[0] == short for one in passed for node in texts_of(one, "nodes"))


def _wanted(run: RunFolder) -> str | None:
    """Return the variable by which the job itself asks for TCP."""
    env = object_of(files.read_json(run.plan) or {}, "env")
    for name, value in _SWITCHES:
        if (text_of(env, name) or "").lower() == value:
            return f"{name}={value} of the job"
    return None
