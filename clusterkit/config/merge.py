"""Layers merged key by key, each value with where it came from, and the `ClusterSpec` they make."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit.config.document import Document, read_own_text
from clusterkit.config.schema import ClusterModel
from clusterkit.config.settings import Origin
from clusterkit.config.sources import display, expand_home
from clusterkit.core import ownership, shell
from clusterkit.core.errors import Position, Problem, UserError, did_you_mean
from clusterkit.core.hosts import hostfile
from clusterkit.core.model import ClusterKind, ClusterSpec, Host

EXCLUSIVE = {"hosts": "hostfile", "hostfile": "hosts"}
"""Keys that say the same in two ways: giving one takes back the other of a weaker layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value as one layer gave it."""

    value: Any
    origin: Origin
    position: Position | None
    base: Path | None = None
    """The folder from which a relative path counts; None for the working folder."""


class Merge:
    """The values of one cluster while its layers are laid over each other, weakest first."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, ...], Given] = {}

    def put(self, key: str, given: Given) -> None:
        """Lay a value over what weaker layers gave; None goes back to the default."""
        if given.value is None:
            self._drop(key)
            return
        if key in EXCLUSIVE:
            self._drop(EXCLUSIVE[key])
        self._given[key,] = given

    def put_item(self, key: str, name: str, given: Given) -> None:
        """Lay one entry of a mapping, such as a variable of `env`, over the others."""
        self._given[key, name] = given

    def get(self, key: str) -> Given | None:
        """Return the value of a key that is no mapping, if one was given."""
        return self._given.get((key,))

    def items(self) -> Iterator[tuple[tuple[str, ...], Given]]:
        """Yield every value with its path inside the cluster."""
        yield from self._given.items()

    def values(self) -> dict[str, Any]:
        """Return the merged values by key."""
        result: dict[str, Any] = {}
        for path, given in self._given.items():
            if len(path) == 1:
                result[path[0]] = given.value
            else:
                result.setdefault(path[0], {})[path[1]] = given.value
        return result

    def _drop(self, key: str) -> None:
        for path in [path for path in self._given if path[0] == key]:
            del self._given[path]


def lay_file(
    merge: Merge, name: str, model: ClusterModel, document: Document, origin: Origin, base: Path
) -> Iterator[Problem]:
    """Lay what a file says of cluster `name` over `merge`; yield what contradicts itself."""
    torn = model.hosts is not None and model.hostfile is not None
    for key in ClusterModel.model_fields:  # the order of the schema, not of the set
        if key not in model.model_fields_set or (torn and key == "hostfile"):
            continue
        value = getattr(model, key)
        path = ("clusters", name, key)
        if isinstance(value, Mapping):
            for item, text in value.items():
                merge.put_item(key, item, _given(text, document, (*path, item), origin, base))
        else:
            merge.put(key, _given(value, document, path, origin, base))
    if torn:
        yield Problem(
            message="hosts and hostfile exclude each other",
            key=f"clusters.{name}.hostfile",
            position=document.key_position(("clusters", name, "hostfile")),
            hint="keep one of the two",
        )


def _given(
    value: Any, document: Document, path: tuple[str, ...], origin: Origin, base: Path
) -> Given:
    position = document.key_position(path)
    return Given(
        value=value,
        origin=Origin(layer=origin.layer, source=origin.source, line=position.line),
        position=position,
        base=base,
    )


PATHS = ("run_dir", "templates")
"""Keys whose relative paths count from the file that they stand in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A cluster, what is wrong with it, and what is odd."""

    spec: ClusterSpec
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def kinds_of(key: str) -> tuple[ClusterKind, ...]:
    """Return the kinds of cluster that `key` applies to."""
    extra: Any = ClusterModel.model_fields[key].json_schema_extra
    return tuple(ClusterKind(kind) for kind in extra["kinds"])


def build_cluster(
    name: str,
    kind: ClusterKind,
    merge: Merge,
    cwd: Path,
    *,
    trusted: Collection[int] = frozenset(),
    hosts_refused: bool = False,
) -> Built:
    """Return the cluster that merged values make.

    `trusted` are ids of users whose hostfiles count, beside one's own and root's. `hosts_refused`
    says that hosts were given, and have been complained about already.
    """
    problems = [*_misplaced(name, kind, merge)]
    values = merge.values()
    for key in PATHS:
        given = merge.get(key)
        if given is not None:
            values[key] = _anchored(given)
            problems += _homeless(name, key, given)
    warnings: tuple[Problem, ...] = ()
    try:
        values["hosts"], warnings = _hosts(name, merge, cwd, trusted)
    except UserError as error:
        problems += error.problems
        values["hosts"] = (Host(name=name),)
    if kind.lists_hosts and not values["hosts"] and not hosts_refused:
        problems.append(
            Problem(
                message=f"cluster {name!r} of kind ssh has no hosts",
                key=f"clusters.{name}",
                position=_position(merge.get("kind")),
                hint="add `hosts: n[1-4]` or `hostfile: PATH`",
            )
        )
    fields = {field.name for field in dataclasses.fields(ClusterSpec)}
    known = {key: value for key, value in values.items() if key in fields}
    spec = ClusterSpec(**{**known, "name": name, "kind": kind})
    return Built(spec=spec, problems=tuple(problems), warnings=warnings)


def _misplaced(name: str, kind: ClusterKind, merge: Merge) -> Iterator[Problem]:
    seen: set[str] = set()
    for path, given in merge.items():
        key = path[0]
        if key in seen or kind in kinds_of(key):
            continue
        seen.add(key)
        kinds = " or ".join(kinds_of(key))
        fitting = [other for other in ClusterModel.model_fields if kind in kinds_of(other)]
        yield Problem(
            message=f"{key} does not apply to a cluster of kind {kind}",
            key=f"clusters.{name}.{key}",
            position=given.position,
            hint=did_you_mean(key, fitting) or f"remove it, or write `kind: {kinds}`",
        )
    runtime = merge.get("container_runtime")
    if runtime is not None and runtime.value == "pyxis" and not kind.scheduled:
        yield Problem(
            message=f"pyxis is a part of Slurm; a cluster of kind {kind} has none",
            key=f"clusters.{name}.container_runtime",
            position=runtime.position,
            hint="choose one of: docker, apptainer, enroot",
        )


def _homeless(name: str, key: str, given: Given) -> Iterator[Problem]:
    try:
        expand_home(str(given.value))
    except UserError as error:
        (problem,) = error.problems
        yield dataclasses.replace(problem, key=f"clusters.{name}.{key}", position=given.position)


def _anchored(given: Given) -> str:
    text = str(given.value)
    if given.base is None or text.startswith(("/", "~", "$")):
        return text
    return str(given.base / text)


def _hosts(
    name: str, merge: Merge, cwd: Path, trusted: Collection[int]
) -> tuple[tuple[Host, ...], tuple[Problem, ...]]:
    """Return the hosts of a cluster, and what is odd about the hostfile that lists them."""
    listed = merge.get("hosts")
    if listed is not None:
        return tuple(Host(name=name) for name in listed.value), ()
    named = merge.get("hostfile")
    if named is None:
        return (), ()
    path = expand_home(_anchored(named))
    source = display(path, cwd)
    try:
        text = read_own_text(
            path,
            source=source,
            use="take the nodes of a cluster from it",
            hint=f"if you trust it, name a copy of your own: cp {shell.quote(str(path))} my-hosts",
            trusted=trusted,
            most=ownership.LARGEST,
        )
        read = hostfile.parse(text, source=source)
    except UserError as error:
        if any(problem.position is not None for problem in error.problems):
            raise  # a place inside the hostfile says more than ours
        raise UserError(
            error.problems[0].message,
            hint=error.problems[0].hint,
            key=f"clusters.{name}.hostfile",
            position=named.position,
        ) from error
    return read.hosts, read.warnings


def _position(given: Given | None) -> Any:
    return given.position if given is not None else None


def as_mapping(spec: ClusterSpec) -> Mapping[str, Any]:
    """Return the values of a cluster by key, in the order of the schema."""
    return {key: getattr(spec, key) for key in ClusterModel.model_fields if hasattr(spec, key)}
