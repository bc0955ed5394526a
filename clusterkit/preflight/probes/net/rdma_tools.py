"""Readers of `ibstat`, `ibstatus` (infiniband-diags), `ibv_devinfo` (rdma-core), `rdma link`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clusterkit.preflight.probes.net.rdma import Device, Port, Rdma, number, physical, rate, state
from clusterkit.transport.probe import Unparsed

_NONE = "No IB devices found"  # ibv_devinfo, examples/devinfo.c
_HEAD = re.compile(
    r"CA '([\w.-]+)'|hca_id:\s*+(\S+)|[Pp]ort:?\s++(\d+):?"
    r"|(?i:Infiniband device) '([\w.-]+)' (?i:port) (\d+) (?i:status).*"
    r"|ibpanic:(?>.*?IB device '([\w.-]+)' failed).*"
)
"""What begins a device or a port: in ibstat and ibv_devinfo, in ibstatus, where ibstat panics."""
_RDMA_LINK = re.compile(r"(?:link|\d+/\d+:) ([\w.-]+)/(\d+):? +(\S.*)")
_FIELD = re.compile(r"([A-Za-z][\w ]*?):\s*+(\S.*)?")


_LAYERS = {"IB": "InfiniBand"}
"""As versions of libibverbs before 1.1.6 say it."""
_NOISE = re.compile(r"ibwarn: |\[?[\w.-]*@[^\]#$]*\]?[#$](?:\s|$)|[\w.-]{0,20}[#$](?:\s|$)")
"""Warnings such as `ibwarn: [4711] umad_init: ...`, and what somebody typed at a prompt."""


@dataclass(slots=True)
class _Block:
    """Fields of a device, and those of its ports."""

    device: dict[str, str] = field(default_factory=dict)
    ports: dict[int, dict[str, str]] = field(default_factory=dict)


def parse(text: str) -> Rdma:
    """Return the devices in the output of any of the four tools."""
    lines = [line for line in text.split("\n") if line.strip() and not _NOISE.match(line)]
    first = lines[0].strip() if lines else ""
    if first == _NONE:
        return Rdma(devices=())
    if _RDMA_LINK.fullmatch(first):
        return _rdma_link(lines)
    head = _HEAD.fullmatch(first)
    if head is None or head[3]:
        raise Unparsed(f"no RDMA device but {first[:40]!r}" if first else "it is empty")
    # With -v, ibv_devinfo prints lists of flags and of GIDs, too.
    blocks = _blocks(lines, lenient=head[2] is not None)
    return Rdma(devices=tuple(_device(name, block) for name, block in blocks.items()))


def _blocks(lines: Sequence[str], *, lenient: bool) -> Mapping[str, _Block]:
    blocks: dict[str, _Block] = {}
    here: dict[str, str] = {}
    for line in lines:
        text = line.strip()
        if head := _HEAD.fullmatch(text):
            name, port = head[1] or head[2] or head[4] or head[6], head[3] or head[5]
            if name is None and not blocks:
                raise Unparsed("a port before any device")
            block = blocks.setdefault(name or next(reversed(blocks)), _Block())
            here = block.ports.setdefault(int(port[:4]), {}) if port else block.device
        elif (found := _FIELD.fullmatch(text)) and found[1] != "port":
            here.setdefault(found[1].lower().replace("_", " "), found[2] or "")
        elif not lenient or found:
            raise Unparsed(f"line {text[:40]!r}")
    return blocks


def _rdma_link(lines: Sequence[str]) -> Rdma:
    devices: dict[str, list[Port]] = {}
    for line in lines:
        match = _RDMA_LINK.fullmatch(line.strip())
        if match is None:
            raise Unparsed(f"line {line.strip()[:40]!r}")
        words = match[3].split()
        said = dict(zip(words[::2], words[1::2], strict=False))
        if "state" not in said or len(words) % 2:
            raise Unparsed(f"line {line.strip()[:40]!r}")
        devices.setdefault(match[1], []).append(
            Port(
                device=match[1],
                number=int(match[2][:4]),
                state=state(said["state"]),
                physical=physical(said.get("physical_state", "")),
                layer="InfiniBand" if "sm_lid" in said else None,
                lid=number(said.get("lid", "")),
                sm_lid=number(said.get("sm_lid", "")),
                netdev=said.get("netdev"),
            )
        )
    return Rdma(devices=tuple(Device(name=n, ports=tuple(p)) for n, p in devices.items()))


def _device(name: str, block: _Block) -> Device:
    said = block.device
    return Device(
        name=name,
        firmware=said.get("firmware version") or said.get("fw ver"),
        board=said.get("board id"),
        model=said.get("ca type") or said.get("vendor part id"),
        ports=tuple(_ports(name, block)),
    )


def _ports(name: str, block: _Block) -> Iterator[Port]:
    for index, said in block.ports.items():
        if "state" not in said:
            raise Unparsed(f"{name} port {index} has no state: the text is cut off")
        rate_gbps, width = rate(said.get("rate", ""))
        layer = said.get("link layer", "")
        yield Port(
            device=name,
            number=index,
            state=state(said["state"]),
            physical=physical(said.get("physical state") or said.get("phys state", "")),
            rate_gbps=rate_gbps,
            width=width,
            layer=_LAYERS.get(layer, layer) or None,
            lid=number(said.get("base lid") or said.get("port lid", "")),
            sm_lid=number(said.get("sm lid", "")),
        )
