"""What the formats are called, what a parsed hostfile is, and what counts as a host name."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum

from clusterkit.core.errors import Problem, UserError, choices_hint
from clusterkit.core.hosts.hostlist import MAX_NAME_LENGTH
from clusterkit.core.model import Host

MAX_SLOTS = 65_536
"""Most slots that one host may have; a larger number is a slip of the keyboard."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME_LENGTH - 1}}}")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_IPV4 = re.compile(r"[0-9]+(?:\.[0-9]+){3}")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+")


class Format(StrEnum):
    """A way to write down hosts; `hydra` is also what Intel MPI reads as `-machinefile`."""

    DEEPSPEED = "deepspeed"
    HOROVOD = "horovod"
    OPENMPI = "openmpi"
    HYDRA = "hydra"
    HOSTLIST = "hostlist"
    NAMES = "names"

    @property
    def tool(self) -> str:
        """Who reads it, as a sentence names it."""
        return _TOOLS[self]

    @property
    def has_slots(self) -> bool:
        """Whether the format can say how many slots a host has."""
        return self not in {Format.HOSTLIST, Format.NAMES}

    @property
    def has_user(self) -> bool:
        """Whether the format can say whom to log in as."""
        return self in {Format.OPENMPI, Format.HYDRA}

    @property
    def has_port(self) -> bool:
        """Whether the format can say on which port."""
        return self is Format.OPENMPI


_TOOLS = {
    Format.DEEPSPEED: "DeepSpeed",
    Format.HOROVOD: "Horovod",
    Format.OPENMPI: "Open MPI",
    Format.HYDRA: "MPICH's Hydra",
    Format.HOSTLIST: "a hostlist",
    Format.NAMES: "a list of names",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFile:
    """The hosts of a file, the format it is in, and where its tool would misread it."""

    hosts: tuple[Host, ...]
    format: Format
    warnings: tuple[Problem, ...] = ()


def to_format(name: str) -> Format:
    """Return the format called `name`.

    Raises:
        UserError: there is none of that name.
    """
    try:
        return Format(name)
    except ValueError:
        known = [known.value for known in Format]
        raise UserError(
            f"no hostfile format is called {name!r}", hint=choices_hint(name, known)
        ) from None


def is_host_name(text: str) -> bool:
    """Tell whether `text` is a host name or an IPv4 or IPv6 address, and safe as an argument."""
    return _NAME.fullmatch(text) is not None or is_ipv6(text)


def short_name(name: str) -> str:
    """Return the host name without its domain; an address as it is."""
    return name if is_ipv6(name) or _IPV4.fullmatch(name) else name.partition(".")[0]


def is_ipv6(text: str) -> bool:
    """Tell whether `text` is an IPv6 address without brackets or a zone."""
    if text.count(":") < 2 or not _IPV6.fullmatch(text):
        return False
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def is_user_name(text: str) -> bool:
    """Tell whether `text` is a POSIX user name, and safe as an argument."""
    return _USER.fullmatch(text) is not None
