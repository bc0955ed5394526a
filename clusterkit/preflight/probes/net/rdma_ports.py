"""RDMA devices and ports, from sysfs, which needs no tool.

The output of `ibstat`, `ibstatus`, `ibv_devinfo` and `rdma link` is read too, so that a bundle
which somebody collected by hand can be judged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from clusterkit.core.data import read_snippet
from clusterkit.preflight.probes.net.rdma import (
    Device,
    Gid,
    Port,
    Rdma,
    number,
    physical,
    rate,
    state,
)
from clusterkit.transport.probe import Probe, Unparsed

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
_OF_DEVICE = ("firmware version", "board id", "ca type")
_OF_PORT = ("state", "physical state", "rate", "link layer", "lid", "sm lid")


@dataclass(slots=True)
class _Block:
    """Fields of a device, and those of its ports with their GIDs, under the names of ibstat."""

    device: dict[str, str] = field(default_factory=dict)
    ports: dict[int, dict[str, str]] = field(default_factory=dict)
    gids: dict[int, list[Gid]] = field(default_factory=dict)


@lru_cache(maxsize=16384)
def parse(text: str) -> Rdma:
    """Read what the snippet printed, or one of the tools."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    if not first.startswith("device|"):
        return parse_tools(text)
    blocks: dict[str, _Block] = {}
    for line in filter(None, text.split("\n")):
        kind, *cells = line.split("|")
        if kind == "device" and len(cells) == 4:
            blocks[cells[0]] = _Block(device=dict(zip(_OF_DEVICE, cells[1:], strict=True)))
        elif kind == "port" and len(cells) == 8 and cells[0] in blocks:
            blocks[cells[0]].ports[_index(cells[1])] = dict(zip(_OF_PORT, cells[2:], strict=True))
        elif kind == "gid" and len(cells) == 6 and cells[0] in blocks:
            index, kind, value, netdev = cells[2:]
            gid = Gid(index=_index(index), kind=kind, value=value, netdev=netdev or None)
            blocks[cells[0]].gids.setdefault(_index(cells[1]), []).append(gid)
        else:
            raise Unparsed(f"line {line[:40]!r}")
    return _rdma(blocks)


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 5):
        raise Unparsed(f"number of a port or GID {text[:20]!r}")
    return int(text)


def parse_tools(text: str) -> Rdma:
    """Return the devices in the output of any of the four tools."""
    lines = [line for line in text.split("\n") if line.strip() and not _NOISE.match(line)]
    first = lines[0].strip() if lines else ""
    if first == _NONE:
        return Rdma(devices=())
    if _RDMA_LINK.fullmatch(first):
        return _rdma(_rdma_link(lines))
    head = _HEAD.fullmatch(first)
    if head is None or head[3]:
        raise Unparsed(f"no RDMA device but {first[:40]!r}" if first else "it is empty")
    # With -v, ibv_devinfo prints lists of flags and of GIDs, too.
    return _rdma(_blocks(lines, lenient=head[2] is not None))


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


def _rdma_link(lines: Sequence[str]) -> Mapping[str, _Block]:
    blocks: dict[str, _Block] = {}
    for line in lines:
        match = _RDMA_LINK.fullmatch(line.strip())
        words = match[3].split() if match else []
        if match is None or len(words) % 2:
            raise Unparsed(f"line {line.strip()[:40]!r}")
        names = (word.replace("_", " ") for word in words[::2])
        fields = dict(zip(names, words[1::2], strict=True))
        if "sm lid" in fields:
            fields["link layer"] = "InfiniBand"
        blocks.setdefault(match[1], _Block()).ports[int(match[2][:4])] = fields
    return blocks


def _rdma(blocks: Mapping[str, _Block]) -> Rdma:
    return Rdma(devices=tuple(_device(name, block) for name, block in blocks.items()))


def _device(name: str, block: _Block) -> Device:
    fields = block.device
    return Device(
        name=name,
        firmware=fields.get("firmware version") or fields.get("fw ver") or None,
        board=fields.get("board id") or None,
        model=fields.get("ca type") or fields.get("vendor part id") or None,
        ports=tuple(
            _port(name, index, fields, block.gids.get(index, []))
            for index, fields in block.ports.items()
        ),
    )


def _port(device: str, index: int, fields: Mapping[str, str], gids: Sequence[Gid]) -> Port:
    if "state" not in fields:
        raise Unparsed(f"{device} port {index} has no state: the text is cut off")
    rate_gbps, width = rate(fields.get("rate", ""))
    layer = fields.get("link layer", "")
    own = tuple(sorted(gids, key=lambda gid: gid.index))
    lid = fields.get("base lid") or fields.get("port lid") or fields.get("lid", "")
    return Port(
        device=device,
        number=index,
        state=state(fields["state"]),
        physical=physical(fields.get("physical state") or fields.get("phys state", "")),
        rate_gbps=rate_gbps,
        width=width,
        layer=_LAYERS.get(layer, layer) or None,
        lid=number(lid),
        sm_lid=number(fields.get("sm lid", "")),
        netdev=next((gid.netdev for gid in own if gid.netdev), fields.get("netdev")),
        gids=own,
    )


PROBE = Probe(name="rdma-ports", command=read_snippet("rdma_ports"), parse=parse)
