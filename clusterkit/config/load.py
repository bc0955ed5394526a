"""Find the layers, merge them key by key, return the settings or everything that is wrong."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from clusterkit.config import platforms, sources
from clusterkit.config.document import (
    LARGEST,
    Document,
    KeyPath,
    in_order,
    parse_document,
    read_own_text,
    read_text,
)
from clusterkit.config.fields import MAX_HOSTS
from clusterkit.config.schema import ClusterModel, ConfigModel, kinds_of
from clusterkit.config.settings import DEFAULT_ORIGIN, Layer, Origin, Settings
from clusterkit.config.validate import complaint, foreign_hint, validate
from clusterkit.core import ownership, shell
from clusterkit.core.errors import Position, Problem, UserError, choices_hint, did_you_mean
from clusterkit.core.hosts import hostfile_reader
from clusterkit.core.metadata import machine_root
from clusterkit.core.model import NO_PLATFORM, ClusterKind, ClusterSpec, Host
from clusterkit.core.records import object_of

LOCAL = "local"
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
_COMPOUND = frozenset(
    {
        "kind", "extra_directives", "skip_directives", "srun_args", "env", "secrets", "modules",
        "drain_command", "setup", "mounts", "hosts", "hostfile", "on_end", "on_failure",
        "exclude",
    }
)  # fmt: skip
SCALAR_KEYS = tuple(key for key in ClusterModel.model_fields if key not in _COMPOUND)
"""Keys of a cluster that `CLUSTERKIT_<KEY>` and flags can set."""
_EXCLUSIVE = {"hosts": "hostfile", "hostfile": "hosts"}
"""Keys that say the same in two ways: giving one takes back the other of a weaker layer."""
_PATHS = ("run_dir", "templates")
"""Keys whose relative paths count from the file that they stand in."""
_FIELDS = frozenset(field.name for field in dataclasses.fields(ClusterSpec))


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: Path
    document: Document
    model: Any
    """A `ConfigModel`."""
    layer: Layer

    def given(self, value: Any, position: Position) -> _Given:
        """Return a value of this file."""
        source = self.document.source
        origin = Origin(layer=self.layer, source=source, line=position.line)
        base = self.path.absolute().parent
        return _Given(value=value, origin=origin, position=position, base=base)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """A value as one layer gave it."""

    value: Any
    origin: Origin
    position: Position | None
    base: Path | None = None
    """The folder from which a relative path counts; None for the working folder."""


_Layers = dict[tuple[str, ...], _Given]
"""The values of one cluster by their paths in it (`("env", "NCCL_DEBUG")`), the strongest kept."""


def load_settings(
    *,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    cluster: str | None = None,
) -> Settings:
    """Return the settings that hold in `cwd`; `cluster`, where a flag names one, is the default.

    A `CLUSTERKIT_<KEY>` variable counts for every cluster whose kind knows the key.

    Raises:
        UserError: with every problem of every layer.
    """
    loader = _Loader(
        cwd=Path.cwd() if cwd is None else cwd,
        environ=os.environ if environ is None else environ,
        cluster=cluster,
    )
    loader.machine = machine_root()
    return loader.merged([*loader.read_files()])


def builtin_settings() -> Settings:
    """Return the settings without any file, variable or flag: the cluster `local` alone."""
    return _Loader(cwd=Path("/"), environ={}, cluster=None).merged([])


class _Loader:
    """One load: collects problems on the way and raises them together at its end."""

    def __init__(self, *, cwd: Path, environ: Mapping[str, str], cluster: str | None) -> None:
        self.cwd = cwd
        self.environ = environ
        self.cluster = cluster
        self.machine: Path | None = None
        """The root of the files by which `platform: auto` recognises; None recognises nothing."""
        self.problems: list[Problem] = []
        self.warnings: dict[str, tuple[Problem, ...]] = {}
        self.clusters: dict[str, _Layers] = {LOCAL: {}}

    def merged(self, files: list[_File]) -> Settings:
        """Return the settings that these files, the environment and the flag make."""
        for file in reversed(files):
            for name, model in (file.model.clusters or {}).items():
                self._lay(name, model or ClusterModel(), file)
        default = self._default_cluster(files)
        if default.value not in self.clusters:
            hint = choices_hint(default.value, self.clusters)
            message = f"unknown cluster {default.value!r}"
            self._wrong(message, hint, "default_cluster", default.position)
        self._lay_environment()
        clusters: dict[str, ClusterSpec] = {}
        hosts = 0
        for name, given in self.clusters.items():
            kind = _kind(name, given)
            if kind is None:
                self._report_missing_kind(name, given)
                continue
            self._lay_platform(name, kind, given)
            clusters[name] = self._build(name, kind, given)
            hosts += len(clusters[name].hosts)
            if hosts > MAX_HOSTS:
                message = f"the hostfiles of all clusters name more than {MAX_HOSTS:,} hosts"
                raise UserError(message, key=f"clusters.{name}")
        if self.problems:
            raise UserError(problems=in_order(self.problems))
        origins = {"default_cluster": default.origin}
        framework = _first(files, "default_framework")
        if framework is not None:
            origins["default_framework"] = framework.origin
        for name, given in self.clusters.items():
            keys = {".".join(("clusters", name, *path)): one for path, one in given.items()}
            origins |= {key: one.origin for key, one in keys.items()}
        return Settings(
            default_cluster=default.value,
            default_framework=None if framework is None else framework.value,
            clusters=clusters,
            origins=origins,
            files=tuple(file.path for file in files),
            warnings=sources.unread_variables(self.environ, SCALAR_KEYS),
            cluster_warnings=self.warnings,
        )

    def read_files(self) -> Iterator[_File]:
        """Yield the files there are, the strongest first."""
        named = sources.named_file(self.cwd, self.environ)
        project = named or sources.nearest_file(self.cwd)
        if project is not None:
            yield from self._read(project, Layer.PROJECT, named=named is not None)
        user = sources.user_file(self.environ)
        # The upward search can end at the user's own file.
        if user is not None and user.is_file() and user != project:
            yield from self._read(user, Layer.USER)

    def _read(self, path: Path, layer: Layer, *, named: bool = False) -> Iterator[_File]:
        source = sources.display(path, self.cwd)
        try:
            if named:
                text = read_text(path, source=source, most=LARGEST)
            else:
                use, trust = "read a configuration from it", shell.quote(str(path))
                hint = f"if you trust it: clusterkit --config-file {trust} ...; to leave it out: "
                hint += "--config-file /dev/null, or a file of your own"
                text = read_own_text(path, source=source, use=use, hint=hint)
            document = parse_document(text, source=source)
        except UserError as error:
            self.problems += error.problems
            return
        keys_at = {1: ConfigModel.model_fields, 3: ClusterModel.model_fields}
        model, problems = validate(document, ConfigModel, keys_at, meant=_meant_in(document))
        self.problems += problems
        yield _File(path=path, document=document, model=model, layer=layer)

    def _lay(self, name: str, model: Any, file: _File) -> None:
        """Lay what a file says of a cluster over what weaker layers gave."""
        where = ("clusters", name)
        position = file.document.key_position
        if not _CLUSTER_NAME.fullmatch(name):
            hint = "letters, digits, '.', '_' and '-' can stand in it"
            self._wrong(f"{name!r} is not a name for a cluster", hint, "clusters", position(where))
            return
        layers = self.clusters.setdefault(name, {})
        torn = model.hosts is not None and model.hostfile is not None
        for key in ClusterModel.model_fields:  # the order of the schema, not of the set
            if key not in model.model_fields_set or (torn and key == "hostfile"):
                continue
            path, value = (*where, key), getattr(model, key)
            if isinstance(value, Mapping):
                for item, text in value.items():
                    layers[key, item] = file.given(text, position((*path, item)))
            else:
                _put(layers, key, file.given(value, position(path)))
        if torn:
            at = position((*where, "hostfile"))
            message = "hosts and hostfile exclude each other"
            self._wrong(message, "keep one of the two", f"clusters.{name}.hostfile", at)

    def _default_cluster(self, files: list[_File]) -> _Given:
        if self.cluster:
            origin = Origin(layer=Layer.FLAG, source="--cluster")
            position = Position(source="flag --cluster")
            return _Given(value=self.cluster, origin=origin, position=position)
        for name in ("CLUSTERKIT_CLUSTER", "CLUSTERKIT_DEFAULT_CLUSTER"):
            if text := self.environ.get(name):
                return _from_variable(name, text)
        default = _Given(value=LOCAL, origin=DEFAULT_ORIGIN, position=None)
        return _first(files, "default_cluster") or default

    def _lay_environment(self) -> None:
        """Lay variables over what files gave; none where one of them is wrong."""
        names = {key: sources.variable(key) for key in SCALAR_KEYS}
        texts = {key: text for key, name in names.items() if (text := self.environ.get(name))}
        if not texts:
            return  # pydantic takes a tenth of a start to check nothing
        try:
            model = ClusterModel.model_validate(texts)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                message, hint = complaint(detail, sources.variable(str(detail["loc"][0])))
                self.problems.append(Problem(message=message, hint=hint))
            return
        for key in texts:
            given = _from_variable(names[key], getattr(model, key))
            for name, layers in self.clusters.items():
                if _kind(name, layers) in kinds_of(key):
                    _put(layers, key, given)

    def _lay_platform(self, name: str, kind: ClusterKind, layers: _Layers) -> None:
        """Lay what the platform of a cluster gives below everything else.

        One that has a login node is looked at there.
        """
        if ("login",) in layers:
            return
        key = "platform"
        try:
            platform = self._platform(kind, layers)
            instance = layers.get(("instance_type",))
            if platform is None:
                if instance is not None and layers.get(("platform",)) is None:
                    self._note_no_platform(name, instance)
                return
            key = "instance_type"
            kept = instance is not None and not _of_another(layers, platform)
            values = platform.values(str(layers[key,].value) if kept else None)
        except UserError as error:
            if any(problem.position is not None for problem in error.problems):
                self.problems += error.problems  # a place inside its file says more than ours
            else:
                self._move(error, f"clusters.{name}.{key}", layers[key,].position)
            return
        origin = Origin(layer=Layer.PLATFORM, source=f"platform {platform.name}")
        for path, value in values.items():
            own = layers.get(path)
            if own is None and kind in kinds_of(path[0]):
                layers[path] = _Given(value=value, origin=origin, position=None)
            elif own is not None and own.value and path[0] in platforms.JOINED:
                both = dataclasses.replace(own.origin, source=f"{origin}, {own.origin.source}")
                layers[path] = dataclasses.replace(own, value=(*value, *own.value), origin=both)

    def _note_no_platform(self, name: str, instance: _Given) -> None:
        message = f"instance_type {instance.value!r} does nothing: no platform is recognised here"
        key, hint = f"clusters.{name}.instance_type", "name it: platform: NAME"
        self.warnings[name] = (
            Problem(message=message, hint=hint, key=key, position=instance.position),
        )

    def _platform(self, kind: ClusterKind, layers: _Layers) -> platforms.Platform | None:
        """Return the platform of a cluster, and note in its layers which that is."""
        given = layers.get(("platform",)) or _Given(
            value=platforms.AUTO, origin=DEFAULT_ORIGIN, position=None
        )
        # Nodes that a scheduler starts are of its own cloud; other hosts may be anywhere.
        if given.value == platforms.AUTO and kind.scheduled and self.machine is not None:
            found = platforms.recognise(self.machine)
            if found is not None:
                origin = Origin(layer=Layer.PLATFORM, source=f"this machine: {found.sign}")
                given = dataclasses.replace(given, value=found.name, origin=origin)
        named = str(given.value)
        if named in {platforms.AUTO, NO_PLATFORM}:
            return None
        if platforms.is_file_name(named):
            named = str(sources.expand_home(_anchored(given)))
        layers["platform",] = dataclasses.replace(given, value=named)
        trusted = sources.trusted_owners(self.cwd, self.environ)
        return platforms.load_platform(named, trusted=trusted)

    def _report_missing_kind(self, name: str, layers: _Layers) -> None:
        where = f"clusters.{name}"
        if self._refused(where, f"{where}.kind") or self._mistyped(where, "kind"):
            return  # it was given, and is wrong
        position = next((given.position for given in layers.values()), None)
        hint = f"add `kind: {' | '.join(ClusterKind)}`"
        self._wrong(f"cluster {name!r} has no kind", hint, where, position)

    def _build(self, name: str, kind: ClusterKind, layers: _Layers) -> ClusterSpec:
        """Return the cluster that merged values make."""
        where = f"clusters.{name}"
        self._report_misplaced(where, kind, layers)
        values: dict[str, Any] = {}
        for (key, *item), given in layers.items():
            if item:
                values.setdefault(key, {})[item[0]] = given.value
            else:
                values[key] = given.value
        for key in _PATHS:
            if given_path := layers.get((key,)):
                values[key] = _anchored(given_path, elsewhere="login" in values)
                try:
                    sources.expand_home(str(given_path.value))
                except UserError as error:
                    self._move(error, f"{where}.{key}", given_path.position)
        try:
            values["hosts"] = self._hosts(name, layers)
        except UserError as error:
            self.problems += error.problems
            values["hosts"] = (Host(name=name),)
        wrong = self._refused(f"{where}.hosts") or self._mistyped(where, "hosts", "hostfile")
        if kind.lists_hosts and not values["hosts"] and not wrong:
            position = layers["kind",].position if ("kind",) in layers else None
            message = f"cluster {name!r} of kind ssh has no hosts"
            self._wrong(message, "add `hosts: n[1-4]` or `hostfile: PATH`", where, position)
        known = {key: value for key, value in values.items() if key in _FIELDS}
        return ClusterSpec(**{**known, "name": name, "kind": kind})

    def _report_misplaced(self, where: str, kind: ClusterKind, layers: _Layers) -> None:
        first = {path[0]: given.position for path, given in reversed(layers.items())}
        for key, position in first.items():
            if kind in kinds_of(key):
                continue
            message = f"{key} does not apply to a cluster of kind {kind}"
            fitting = [other for other in ClusterModel.model_fields if kind in kinds_of(other)]
            kinds = " or ".join(kinds_of(key))
            hint = foreign_hint(key, kind) or did_you_mean(key, fitting)
            hint = hint or f"remove it, or write `kind: {kinds}`"
            self._wrong(message, hint, f"{where}.{key}", position)
        runtime = layers.get(("container_runtime",))
        if runtime is not None and runtime.value == "pyxis" and not kind.scheduled:
            message = f"pyxis is a part of Slurm; a cluster of kind {kind} has none"
            hint = "choose one of: docker, apptainer, enroot"
            self._wrong(message, hint, f"{where}.container_runtime", runtime.position)

    def _hosts(self, name: str, layers: _Layers) -> tuple[Host, ...]:
        """Return the hosts of a cluster; note what is odd about the hostfile that lists them."""
        if listed := layers.get(("hosts",)):
            return tuple(Host(name=name) for name in listed.value)
        named = layers.get(("hostfile",))
        if named is None:
            return ()
        path = sources.expand_home(_anchored(named))
        source = sources.display(path, self.cwd)
        use = "take the nodes of a cluster from it"
        hint = f"if you trust it, name a copy of your own: cp {shell.quote(str(path))} my-hosts"
        trusted = sources.trusted_owners(self.cwd, self.environ)
        try:
            text = read_own_text(
                path, source=source, use=use, hint=hint, trusted=trusted, most=ownership.LARGEST
            )
            read = hostfile_reader.parse(text, source=source)
        except UserError as error:
            if any(problem.position is not None for problem in error.problems):
                raise  # a place inside the hostfile says more than ours
            self._move(error, f"clusters.{name}.hostfile", named.position)
            return (Host(name=name),)
        self.warnings[name] = (*self.warnings.get(name, ()), *read.warnings)
        return read.hosts

    def _move(self, error: UserError, key: str, position: Position | None) -> None:
        """Report the first problem of an error as one of the value under `key`."""
        self._wrong(error.problems[0].message, error.problems[0].hint, key, position)

    def _wrong(self, message: str, hint: str | None, key: str, position: Position | None) -> None:
        self.problems.append(Problem(message=message, hint=hint, key=key, position=position))

    def _refused(self, *keys: str) -> bool:
        """Tell whether something is already said against one of the keys."""
        return any(problem.key in keys for problem in self.problems)

    def _mistyped(self, where: str, *keys: str) -> bool:
        """Tell whether the hint about another key of a cluster is that one of these was meant."""
        of_cluster = (one for one in self.problems if (one.key or "").startswith(f"{where}."))
        meant = re.compile(rf"['`](?:{'|'.join(keys)})\b")
        return any(meant.search(one.hint or "") for one in of_cluster)


def _meant_in(document: Document) -> Callable[[KeyPath], str | None]:
    """Return what has a hint about an unknown key of a file, where more than its letters tells."""

    def meant(path: KeyPath) -> str | None:
        if len(path) != 3 or not isinstance(document.data, dict):
            return None
        cluster = object_of(object_of(document.data, str(path[0])), str(path[1]))
        return foreign_hint(str(path[2]), cluster.get("kind") or cluster.get("type"), "cluster")

    return meant


def _of_another(layers: _Layers, platform: platforms.Platform) -> bool:
    """Tell whether a file's instance type is of a platform that a variable has replaced."""
    instance = layers["instance_type",]
    by_variable = [one.origin.layer is Layer.ENVIRONMENT for one in (layers["platform",], instance)]
    return by_variable == [True, False] and instance.value not in platform.instances


def _first(files: list[_File], key: str) -> _Given | None:
    """Return a top-level value of the strongest file that has it."""
    for file in files:
        value = getattr(file.model, key)
        if value is not None:
            return file.given(value, file.document.value_position((key,)))
    return None


def _put(layers: _Layers, key: str, given: _Given) -> None:
    """Lay a value over what weaker layers gave; None goes back to the default."""
    gone = key if given.value is None else _EXCLUSIVE.get(key)
    for path in [path for path in layers if path[0] == gone]:
        del layers[path]
    if given.value is not None:
        layers[key,] = given


def _anchored(given: _Given, *, elsewhere: bool = False) -> str:
    text = str(given.value)
    if text.startswith(("/", "~", "$")):
        return text
    if elsewhere:
        return f"~/{text}"
    return text if given.base is None else str(given.base / text)


def _kind(name: str, layers: _Layers) -> ClusterKind | None:
    given = layers.get(("kind",))
    if given is not None:
        return ClusterKind(given.value)
    return ClusterKind.LOCAL if name == LOCAL else None


def _from_variable(name: str, value: Any) -> _Given:
    origin = Origin(layer=Layer.ENVIRONMENT, source=name)
    position = Position(source=f"environment variable {name}")
    return _Given(value=value, origin=origin, position=position)
