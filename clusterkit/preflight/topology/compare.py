"""Lists of interfaces and HCAs, and NCCL_IB_HCA beside a topology: what is left out.

NCCL reads `[^][=]name[:port],...`: `^` turns the list into what to leave out, `=` asks for exact
names; without it each name is a prefix, so that mlx5_1 takes mlx5_10 too (NCCL source:
src/misc/utils.cc `matchIfList`, src/transport/net_ib.cc).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterkit.preflight.topology.analysis import far_nics, recommended_nics
from clusterkit.preflight.topology.matrix import Topology

_WHOLE = 4
"""A job that sees fewer GPUs may share the machine: NICs near none of them may be near others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameList:
    """A list of interfaces or HCAs, such as NCCL_IB_HCA: what it takes of those that are there."""

    names: tuple[tuple[str, int | None], ...]
    """Name or prefix, and the port; None for all ports."""
    exact: bool = False
    exclude: bool = False

    def takes(self, device: str, port: int | None = None) -> bool:
        """Tell whether NCCL uses this device; None asks for any port of it."""
        listed = any(
            self._matches(device, name) and (port is None or wanted in {None, port})
            for name, wanted in self.names
        )
        return listed != self.exclude if self.names else True

    def taken(self, there: Sequence[str]) -> tuple[str, ...]:
        """Return the names that it takes; a list without names excludes none, or takes none."""
        return tuple(n for n in there if self.takes(n)) if self.names or self.exclude else ()

    def by_item(self, there: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """Return the names that each item of the list matches."""
        return {item: tuple(n for n in there if self._matches(n, item)) for item, _ in self.names}

    def _matches(self, name: str, item: str) -> bool:
        return name == item if self.exact else name.startswith(item)


def parse_names(value: str, *, plain: bool = False) -> NameList:
    """Read a value as NCCL does: `^` before `=`, empty names dropped, no blank trimmed.

    With `plain`, the library knows neither `^` and `=` nor prefixes.
    """
    exclude = value.startswith("^") and not plain
    rest = value[1:] if exclude else value
    exact = plain or rest.startswith("=")
    rest = rest[1:] if exact and not plain else rest
    names = []
    for word in filter(None, rest.split(",")):
        name, _, port = word.partition(":")
        if name:  # NCCL takes no item without one
            names.append((name, int(port) if re.fullmatch(r"[0-9]{1,3}", port) else None))
    return NameList(names=tuple(names), exact=exact, exclude=exclude)


def compare_hca(
    topology: Topology, value: str, *, down: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield what is odd about a value of NCCL_IB_HCA on a machine with this topology.

    Devices that are `down` are not missed: NCCL uses ports in state Active only.
    """
    devices = [nic.device for nic in topology.nics if nic.device is not None]
    if not devices or len(devices) != len(topology.nics):
        return
    names = parse_names(value)
    taken = [device for device in devices if names.takes(device)]
    if not taken:
        yield f"NCCL_IB_HCA={value} takes none of the NICs"
        return
    far = [device for device in far_nics(topology) if device in taken]
    if len(topology.gpus) < _WHOLE:
        far = []
    if far:
        named = {name for name, _ in names.names}
        surprise = not (names.exact or names.exclude) and not named & set(far)
        how = " (its names are prefixes)" if surprise else ""
        yield f"NCCL_IB_HCA takes {','.join(far)}, near no GPU{how}"
    recommended = recommended_nics(topology)
    left_out = [device for device in recommended if device not in taken and device not in down]
    if left_out:
        yield f"NCCL_IB_HCA leaves out {','.join(left_out)}, near a GPU"
