"""The settings in force, and where each of them came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from clusterkit.core.errors import Problem, UserError, choices_hint
from clusterkit.core.model import ClusterSpec


class Layer(StrEnum):
    """Where a value can come from; the first that has it wins."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    PROJECT = "project"
    USER = "user"
    PLATFORM = "platform"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The layer, and the file and line or the variable, that gave a value."""

    layer: Layer
    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


DEFAULT_ORIGIN = Origin(layer=Layer.DEFAULT, source="default")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every cluster with all layers merged; `local` is always among them."""

    default_cluster: str
    default_framework: str | None
    """That of jobs which name none; None for one that fits what they run."""
    clusters: Mapping[str, ClusterSpec]
    origins: Mapping[str, Origin]
    """Dotted key (`clusters.a100.partition`) -> origin, for every value that was given."""
    files: tuple[Path, ...]
    """The files that were read, the strongest first."""
    warnings: tuple[Problem, ...] = ()
    """What is odd but does no harm: `CLUSTERKIT_*` variables that nothing reads."""
    cluster_warnings: Mapping[str, tuple[Problem, ...]] = field(default_factory=dict)
    """Cluster -> what is odd in the files that it names, such as its hostfile."""

    def cluster(self, name: str | None = None) -> ClusterSpec:
        """Return the cluster called `name`, or the default one.

        Raises:
            UserError: there is none of that name.
        """
        chosen = self.default_cluster if name is None else name
        if chosen not in self.clusters:
            raise UserError(f"unknown cluster {chosen!r}", hint=choices_hint(chosen, self.clusters))
        return self.clusters[chosen]

    def warnings_of(self, name: str) -> tuple[Problem, ...]:
        """Return what is odd about one cluster."""
        return self.cluster_warnings.get(name, ())

    def origin(self, key: str) -> Origin:
        """Return where the value of a dotted key came from."""
        return self.origins.get(key, DEFAULT_ORIGIN)
