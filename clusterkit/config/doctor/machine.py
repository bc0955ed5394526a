"""What the doctor examines, and what an examination yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from clusterkit.config.init.discover import Run
from clusterkit.config.settings import Settings
from clusterkit.core.errors import Problem
from clusterkit.core.model import ClusterKind

LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Condition(StrEnum):
    """How an item was found."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"
    FAIL = "fail"
    """It exists and cannot work: a configuration with errors, a run folder without permissions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One line of the doctor's answer."""

    name: str
    condition: Condition
    summary: str
    fix: str | None = None
    """What to type."""
    needed: bool = False
    """Whether clusterkit, or a cluster of the configuration, cannot do without it."""

    @property
    def finding(self) -> bool:
        """Whether it makes the doctor end with exit code 1."""
        bad = self.condition is Condition.FAIL
        return bad or (self.needed and self.condition is Condition.MISSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is examined."""

    settings: Settings
    run: Run
    local_ports: Path = LOCAL_PORTS
    problems: tuple[Problem, ...] = ()
    """What is wrong with the configuration; `settings` are the built-in ones then."""

    def has(self, kind: ClusterKind) -> bool:
        """Tell whether a cluster of that kind is configured."""
        return any(spec.kind is kind for spec in self.settings.clusters.values())

    def pythons(self) -> tuple[str, ...]:
        """Return the interpreters that clusters name, each once."""
        named = (spec.python for spec in self.settings.clusters.values())
        return tuple(dict.fromkeys(python for python in named if python))


Examination = Callable[[Machine], Iterator[Item]]


def good(name: str, summary: str, *, needed: bool = False) -> Item:
    """Return an item with which nothing is wrong."""
    return Item(name=name, condition=Condition.OK, summary=summary, needed=needed)


def bad(
    name: str, condition: Condition, summary: str, fix: str | None = None, *, needed: bool = False
) -> Item:
    """Return an item that is not as it should be, and what to type."""
    return Item(name=name, condition=condition, summary=summary, fix=fix, needed=needed)
