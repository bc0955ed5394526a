"""RDMA devices and their ports: what every source of them is read into."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from clusterkit.core.untrusted import real, whole
from clusterkit.transport.probe import Unparsed

_STATES = {
    "nop": "nop",
    "down": "down",
    "init": "init",
    "initializing": "init",
    "initialize": "init",
    "armed": "armed",
    "active": "active",
    "activedefer": "active",
    "actdefer": "active",
}
_PHYSICAL = {
    "nostatechange": "no change",
    "sleep": "sleep",
    "polling": "polling",
    "disabled": "disabled",
    "portconfigurationtraining": "training",
    "linkup": "link up",
    "linkerrorrecovery": "error recovery",
    "linkerrorrecover": "error recovery",
    "phytest": "test",
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
    netdev: str | None = None


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
    netdev: str | None = None
    gids: tuple[Gid, ...] = ()

    @property
    def name(self) -> str:
        """Such as `mlx5_0/1`."""
        return f"{self.device}/{self.number}"

    @property
    def active(self) -> bool:
        """Whether data can flow."""
        return self.state == "active"


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
    return _known(text.replace("PORT_", "", 1), _STATES, "port state")


@lru_cache(maxsize=4096)
def physical(text: str) -> str | None:
    """Read a physical state: `5: LinkUp` (sysfs), `LinkUp` (ibstat), `LINK_UP` (rdma)."""
    return None if text.strip().lower() in _UNKNOWN else _known(text, _PHYSICAL, "physical state")


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
    if not re.fullmatch(r"0x[0-9a-f]{1,16}|[0-9]{1,9}", word):
        raise Unparsed(f"number {text[:30]!r}")
    return whole(word, base=16 if word.startswith("0x") else 10)


def _known(text: str, words: Mapping[str, str], what: str) -> str:
    match = _NUMBERED.fullmatch(text.strip())
    word = _FILLER.sub("", match[1]).lower() if match else ""
    if word not in words:
        raise Unparsed(f"{what} {text[:30]!r}")
    return words[word]
