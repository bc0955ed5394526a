"""RDMA devices and ports with their error counters, and EFA, from sysfs, which needs no tool.

The output of `ibstat`, `ibstatus`, `ibv_devinfo` and `rdma link` is read too, so that a bundle
which somebody collected by hand can be judged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from clusterkit.core.data import read_snippet, read_table
from clusterkit.core.untrusted import real, whole
from clusterkit.preflight.probes.snippets import matched, number_of, read_pairs, text_of
from clusterkit.transport.probe import Probe, Unparsed

_STATES = {
    (row["which"], row["written"]): row["state"] for row in read_table(__file__, "port_states.tsv")
}
_RATE = re.compile(
    r"(\d{1,5}(?:\.\d)?)(?: Gb(?:/sec|ps))?(?: \(\s*(\d{1,2})X(?: ([A-Z0-9]{1,8}))?\))?"
)
_UNKNOWN = frozenset({"", "<unknown>", "unknown", "n/a"})
_FILLER = re.compile(r"[ _-]")
_NUMBERED = re.compile(r"(?:\d{1,2}: *+)?(.*?)(?: \(\d{1,2}\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gid:
    """An address of a port, as the RDMA core lists it."""

    index: int
    kind: str
    """`RoCE v2`, `IB/RoCE v1`."""
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of an RDMA device; None where the source does not say."""

    device: str
    number: int
    state: str
    """nop, down, init, armed or active."""
    physical: str | None
    """Such as `link up`, `polling` (no cable, or the far end is off), `disabled`."""
    rate_gbps: float | None = None
    """Of a port that is not active it says nothing."""
    width: int | None = None
    """Lanes."""
    layer: str | None = None
    """`InfiniBand` or `Ethernet`; drivers may say something else (EFA)."""
    lid: int | None = None
    sm_lid: int | None = None
    gids: tuple[Gid, ...] = ()

    @property
    def name(self) -> str:
        """Such as `mlx5_0/1`."""
        return f"{self.device}/{self.number}"

    @property
    def active(self) -> bool:
        """Whether data can flow."""
        return self.state == "active"

    @property
    def speed(self) -> tuple[float, int | None] | None:
        """Gb/s and number of lanes; None where the port is not active, or its rate not known."""
        known = self.active and self.rate_gbps is not None
        return (self.rate_gbps or 0.0, self.width) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An RDMA device; without ports, it could not be read."""

    name: str
    firmware: str | None = None
    board: str | None = None
    """The PSID."""
    model: str | None = None
    """The type of the chip, such as `MT4129`."""
    ports: tuple[Port, ...] = ()

    @property
    def family(self) -> str:
        """What devices have in common that are fit for the same work and the same firmware.

        The first number of a firmware is the generation of the chip: models alone may hide it.
        """
        generation = (self.firmware or "").partition(".")[0]
        return "/".join(filter(None, (self.board or self.model, generation)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rdma:
    """The RDMA devices of a node."""

    devices: tuple[Device, ...]

    @property
    def ports(self) -> tuple[Port, ...]:
        """All ports of all devices."""
        return tuple(port for device in self.devices for port in device.ports)

    @property
    def down(self) -> frozenset[str]:
        """Devices without an active port."""
        return frozenset(
            device.name for device in self.devices if not any(port.active for port in device.ports)
        )


@lru_cache(maxsize=4096)
def state(text: str) -> str:
    """Read a logical state: `4: ACTIVE` (sysfs), `PORT_ACTIVE (4)` (verbs), `Active` (ibstat)."""
    return _known(text.replace("PORT_", "", 1), "port")


@lru_cache(maxsize=4096)
def physical(text: str) -> str | None:
    """Read a physical state: `5: LinkUp` (sysfs), `LinkUp` (ibstat), `LINK_UP` (rdma)."""
    return None if text.strip().lower() in _UNKNOWN else _known(text, "physical")


@lru_cache(maxsize=4096)
def rate(text: str) -> tuple[float | None, int | None]:
    """Read `200 Gb/sec (4X HDR)` (sysfs) or `200` (ibstat) to Gb/s and lanes."""
    if text.strip().lower() in _UNKNOWN:
        return None, None
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise Unparsed(f"rate {text[:30]!r}")
    return real(match[1]), int(match[2]) if match[2] else None


@lru_cache(maxsize=4096)
def number(text: str) -> int | None:
    """Read a number, decimal or with 0x."""
    word = text.strip().lower()
    if word in _UNKNOWN:
        return None
    return whole(word, base=16 if word.startswith("0x") else 10)


def _known(text: str, which: str) -> str:
    match = _NUMBERED.fullmatch(text.strip())
    word = _FILLER.sub("", match[1]).lower() if match else ""
    if (which, word) not in _STATES:
        raise Unparsed(f"{which} state {text[:30]!r}")
    return _STATES[which, word]


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
            blocks[cells[0]].ports[whole(cells[1])] = dict(zip(_OF_PORT, cells[2:], strict=True))
        elif kind == "gid" and len(cells) == 6 and cells[0] in blocks:
            gid = Gid(index=whole(cells[2]), kind=cells[3], value=cells[4])
            blocks[cells[0]].gids.setdefault(whole(cells[1]), []).append(gid)
        else:
            raise Unparsed(f"line {line[:40]!r}")
    return _rdma(blocks)


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
        pairs = match[3].split() if match else []
        if match is None or len(pairs) % 2:
            raise Unparsed(f"line {line.strip()[:40]!r}")
        names = (word.replace("_", " ") for word in pairs[::2])
        fields = dict(zip(names, pairs[1::2], strict=True))
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
        gids=own,
    )


PROBE = Probe(name="rdma-ports", command=read_snippet("rdma_ports"), parse=parse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Efa:
    """How far the devices of a node have come."""

    pci: int
    """On the PCI bus."""
    bound: int
    """With a driver, as RDMA devices."""
    usable: int
    """Devices below /dev/infiniband that whoever asks may open, of whatever kind."""
    provider: bool | None
    """Whether libfabric finds one; None without `fi_info`."""


def parse_efa(text: str) -> Efa:
    """Read the pairs of the snippet."""
    pairs = read_pairs(text)
    known = {"there": True, "absent": False, "unknown": None}
    if (provider := text_of(pairs, "provider")) not in known:
        raise Unparsed(f"provider {provider[:40]!r}")
    return Efa(
        pci=number_of(pairs, "pci"),
        bound=number_of(pairs, "bound"),
        usable=number_of(pairs, "usable"),
        provider=known[provider],
    )


EFA = Probe(name="efa", command=read_snippet("efa"), parse=parse_efa)


COUNTERS = {row["counter"]: int(row["bits"]) for row in read_table(__file__, "rdma_counters.tsv")}
"""Each counter with its bits."""
_WIDEST = 32
"""Bits that some drivers count to."""
_NARROW = 4
"""Bits of counters that are full on sound machines, too, soon after they have started."""


_LINE = re.compile(r"([12]) ([\w.-]+)/ports/(\d{1,3})((?: \w+=\d{1,20})*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCounters:
    """The counters of a port that are not 0."""

    port: str
    """Such as `mlx5_0/1`."""
    total: tuple[tuple[str, int], ...]
    rising: tuple[tuple[str, int], ...]
    """What was added between the two readings."""

    @property
    def full(self) -> tuple[tuple[str, int], ...]:
        """Counters at their end, where they stay until they are reset: they rise no more."""
        return tuple((name, n) for name, n in self.total if n in _ends(name))


def _ends(name: str) -> set[int]:
    bits = COUNTERS.get(name, _WIDEST)
    return {2**n - 1 for n in (bits, _WIDEST) if n > _NARROW}


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaCounters:
    """Counters of all ports that have some; virtual functions have none."""

    ports: tuple[PortCounters, ...]


def parse_counters(text: str) -> RdmaCounters:
    """Read the two blocks of lines, one line per port."""
    samples: dict[str, dict[str, dict[str, int]]] = {"1": {}, "2": {}}
    for match in matched(text, _LINE):
        values = (word.split("=") for word in match[4].split())
        samples[match[1]][f"{match[2]}/{match[3]}"] = {name: int(n) for name, n in values}
    if samples["1"].keys() != samples["2"].keys():
        raise Unparsed("the two readings are not of the same ports")
    ports = []
    for port, after in samples["2"].items():
        before = samples["1"][port]
        # A counter that was reset in between is smaller: it has not risen.
        added = ((name, n - before.get(name, 0)) for name, n in after.items())
        rising = tuple((name, n) for name, n in added if n > 0)
        ports.append(PortCounters(port=port, total=tuple(after.items()), rising=rising))
    return RdmaCounters(ports=tuple(ports))


ERROR_COUNTERS = Probe(
    name="rdma-counters",
    command=read_snippet("rdma_counters", counters=" ".join(COUNTERS)),
    parse=parse_counters,
)
