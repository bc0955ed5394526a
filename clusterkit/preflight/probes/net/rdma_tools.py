"""Readers of `ibstat`, `ibstatus` (infiniband-diags), `ibv_devinfo` (rdma-core), `rdma link`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clusterkit.preflight.probes.net.rdma import Device, Port, Rdma, number, physical, rate, state
from clusterkit.transport.probe import Unparsed

_IBSTAT_DEVICE = re.compile(r"CA '([\w.-]+)'")
_IBSTAT_PORT = re.compile(r"[Pp]ort (\d+)")
_IBSTATUS = re.compile(r"Infiniband device '([\w.-]+)' port (\d+) status", re.IGNORECASE)
_NONE = "No IB devices found"  # ibv_devinfo, examples/devinfo.c
_BROKEN = re.compile(r"ibpanic:(?>.*?IB device '([\w.-]+)' failed).*")
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
    if _IBSTAT_DEVICE.fullmatch(first) or _BROKEN.fullmatch(first):
        blocks = _ibstat(lines)
    elif _IBSTATUS.match(first):
        blocks = _ibstatus(lines)
    elif first.startswith("hca_id:"):
        blocks = _ibv_devinfo(lines)
    else:
        raise Unparsed(f"no RDMA device but {first[:40]!r}" if first else "it is empty")
    return Rdma(devices=tuple(_device(name, block) for name, block in blocks.items()))


def _ibstat(lines: Sequence[str]) -> Mapping[str, _Block]:
    blocks: dict[str, _Block] = {}
    here: dict[str, str] = {}
    for line in lines:
        text = line.strip()
        if match := _IBSTAT_DEVICE.fullmatch(text):
            block = blocks[match[1]] = _Block()
            here = block.device
        elif match := _IBSTAT_PORT.fullmatch(text.removesuffix(":")):
            if not blocks:
                raise Unparsed("a port before any device")
            here = blocks[next(reversed(blocks))].ports.setdefault(int(match[1][:4]), {})
        elif match := _BROKEN.fullmatch(text):
            blocks.setdefault(match[1], _Block())
        else:
            _add(here, line)
    return blocks


def _ibstatus(lines: Sequence[str]) -> Mapping[str, _Block]:
    blocks: dict[str, _Block] = {}
    here: dict[str, str] = {}
    for line in lines:
        if match := _IBSTATUS.match(line):
            here = blocks.setdefault(match[1], _Block()).ports.setdefault(int(match[2][:4]), {})
        else:
            _add(here, line)
    return blocks


def _ibv_devinfo(lines: Sequence[str]) -> Mapping[str, _Block]:
    blocks: dict[str, _Block] = {}
    here: dict[str, str] = {}
    for line in lines:
        # With -v there are lists of flags and of GIDs, too.
        match = _FIELD.fullmatch(line.strip())
        name, value = (match[1], match[2] or "") if match else ("", "")
        if name == "hca_id":
            here = blocks.setdefault(value, _Block()).device
        elif name == "port":
            block = blocks[next(reversed(blocks))]
            here = block.ports.setdefault(_port_number(value), {})
        else:
            here.setdefault(name.replace("_", " "), value)
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
        layer = said.get("link layer") or said.get("link_layer") or ""
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


def _add(here: dict[str, str], line: str) -> None:
    name, value = _field(line)
    here[name] = value


def _field(line: str) -> tuple[str, str]:
    match = _FIELD.fullmatch(line.strip())
    if match is None:
        raise Unparsed(f"line {line.strip()[:40]!r}")
    return match[1].lower(), match[2] or ""


def _port_number(text: str) -> int:
    found = number(text)
    if found is None:
        raise Unparsed("a port without a number")
    return found
