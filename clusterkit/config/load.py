"""Find the layers, merge them, and return the settings, or everything that is wrong with them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from clusterkit.config import sources
from clusterkit.config.document import (
    LARGEST,
    Document,
    in_order,
    parse_document,
    read_own_text,
    read_text,
)
from clusterkit.config.fields import MAX_HOSTS
from clusterkit.config.merge import Given, Merge, build_cluster, kinds_of, lay_file
from clusterkit.config.schema import ClusterModel, ConfigModel
from clusterkit.config.settings import DEFAULT_ORIGIN, Layer, Origin, Settings
from clusterkit.config.validate import complaint, validate
from clusterkit.core.errors import Position, Problem, UserError, choices_hint
from clusterkit.core.model import ClusterKind, ClusterSpec

LOCAL = "local"
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
_COMPOUND = frozenset(
    {
        "kind", "extra_directives", "skip_directives", "srun_args", "env", "secrets", "modules",
        "setup", "mounts", "hosts", "hostfile",
    }
)  # fmt: skip
SCALAR_KEYS = tuple(key for key in ClusterModel.model_fields if key not in _COMPOUND)
"""Keys of a cluster that `CLUSTERKIT_<KEY>` and flags can set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """One file that was read."""

    path: Path
    document: Document
    model: ConfigModel
    origin: Origin


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
        self.problems: list[Problem] = []
        self.warnings: dict[str, tuple[Problem, ...]] = {}
        self.merges: dict[str, Merge] = {LOCAL: Merge()}

    def merged(self, files: list[_File]) -> Settings:
        """Return the settings that these files, the environment and the flag make."""
        for file in reversed(files):
            self._lay_clusters(file)
        default = self._default_cluster(files)
        variables = self._lay_environment()
        clusters: dict[str, ClusterSpec | None] = {}
        hosts = 0
        for name, merge in self.merges.items():
            spec = clusters[name] = self._build(name, merge)
            hosts += len(spec.hosts) if spec else 0
            if hosts > MAX_HOSTS:
                message = f"the hostfiles of all clusters name more than {MAX_HOSTS:,} hosts"
                raise UserError(message, key=f"clusters.{name}")
        if self.problems:
            raise UserError(problems=in_order(self.problems))
        return Settings(
            default_cluster=default.value,
            clusters={name: spec for name, spec in clusters.items() if spec is not None},
            origins={"default_cluster": default.origin, **self._origins()},
            files=tuple(file.path for file in files),
            warnings=variables,
            cluster_warnings=self.warnings,
        )

    def read_files(self) -> Iterator[_File]:
        """Yield the files there are, the strongest first."""
        project = sources.project_file(self.cwd, self.environ)
        user = sources.user_file(self.environ)
        if project is not None:
            yield from self._read(project.path, Layer.PROJECT, named=project.named)
        # The upward search can end at the user's own file.
        if user is not None and user.is_file() and not (project and user == project.path):
            yield from self._read(user, Layer.USER)

    def _read(self, path: Path, layer: Layer, *, named: bool = False) -> Iterator[_File]:
        source = sources.display(path, self.cwd)
        try:
            if named:
                text = read_text(path, source=source, most=LARGEST)
            else:
                use, hint = "read a configuration from it", sources.trust_hint(path)
                text = read_own_text(path, source=source, use=use, hint=hint)
            document = parse_document(text, source=source)
        except UserError as error:
            self.problems += error.problems
            return
        keys_at = {1: ConfigModel.model_fields, 3: ClusterModel.model_fields}
        model, problems = validate(document, ConfigModel, keys_at)
        self.problems += problems
        origin = Origin(layer=layer, source=source)
        yield _File(path=path, document=document, model=model, origin=origin)

    def _lay_clusters(self, file: _File) -> None:
        for name, model in (file.model.clusters or {}).items():
            if not _CLUSTER_NAME.fullmatch(name):
                message = f"{name!r} is no name for a cluster"
                position = file.document.key_position(("clusters", name))
                hint = "letters, digits, '.', '_' and '-' can stand in it"
                self._wrong(message, hint, "clusters", position)
                continue
            merge = self.merges.setdefault(name, Merge())
            base = file.path.absolute().parent
            lay = lay_file(merge, name, model or ClusterModel(), file.document, file.origin, base)
            self.problems += lay

    def _default_cluster(self, files: list[_File]) -> Given:
        given = self._named_default(files)
        if given.value not in self.merges:
            message = f"unknown cluster {given.value!r}"
            hint = choices_hint(given.value, self.merges)
            self._wrong(message, hint, "default_cluster", given.position)
        return given

    def _named_default(self, files: list[_File]) -> Given:
        if self.cluster:
            origin = Origin(layer=Layer.FLAG, source="--cluster")
            position = Position(source="flag --cluster")
            return Given(value=self.cluster, origin=origin, position=position)
        for name in ("CLUSTERKIT_CLUSTER", "CLUSTERKIT_DEFAULT_CLUSTER"):
            if text := self.environ.get(name):
                return _from_variable(name, text)
        for file in files:
            if file.model.default_cluster is not None:
                position = file.document.value_position(("default_cluster",))
                return Given(
                    value=file.model.default_cluster,
                    origin=replace(file.origin, line=position.line),
                    position=position,
                )
        return Given(value=LOCAL, origin=DEFAULT_ORIGIN, position=None)

    def _lay_environment(self) -> tuple[Problem, ...]:
        texts = {
            key: text for key in SCALAR_KEYS if (text := self.environ.get(sources.variable(key)))
        }
        for key, value in self._parsed(texts).items():
            for name, merge in self.merges.items():
                if _kind(name, merge) in kinds_of(key):
                    merge.put(key, _from_variable(sources.variable(key), value))
        return sources.unread_variables(self.environ, SCALAR_KEYS)

    def _parsed(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of variables by key; none where one of them is wrong."""
        try:
            model = ClusterModel.model_validate(dict(texts))
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                message, hint = complaint(detail, sources.variable(str(detail["loc"][0])))
                self.problems.append(Problem(message=message, hint=hint))
            return {}
        return {key: getattr(model, key) for key in texts}

    def _build(self, name: str, merge: Merge) -> ClusterSpec | None:
        kind = _kind(name, merge)
        if kind is None:
            self._report_missing_kind(name, merge)
            return None
        built = build_cluster(
            name,
            kind,
            merge,
            self.cwd,
            trusted=sources.trusted_owners(self.cwd, self.environ),
            hosts_refused=self._refused(f"clusters.{name}.hosts"),
        )
        self.problems += built.problems
        self.warnings[name] = built.warnings
        return built.spec

    def _report_missing_kind(self, name: str, merge: Merge) -> None:
        where = f"clusters.{name}"
        if self._refused(where, f"{where}.kind"):
            return  # it was given, and is wrong
        first = next(merge.items(), None)
        position = first[1].position if first else None
        hint = f"add `kind: {' | '.join(ClusterKind)}`"
        self._wrong(f"cluster {name!r} has no kind", hint, where, position)

    def _wrong(self, message: str, hint: str, key: str, position: Position | None) -> None:
        self.problems.append(Problem(message=message, hint=hint, key=key, position=position))

    def _refused(self, *keys: str) -> bool:
        """Tell whether something is already said against one of the keys."""
        return any(problem.key in keys for problem in self.problems)

    def _origins(self) -> dict[str, Origin]:
        return {
            ".".join(("clusters", name, *path)): given.origin
            for name, merge in self.merges.items()
            for path, given in merge.items()
        }


def _kind(name: str, merge: Merge) -> ClusterKind | None:
    given = merge.get("kind")
    if given is not None:
        return ClusterKind(given.value)
    return ClusterKind.LOCAL if name == LOCAL else None


def _from_variable(name: str, value: Any) -> Given:
    return Given(
        value=value,
        origin=Origin(layer=Layer.ENVIRONMENT, source=name),
        position=sources.environment_position(name),
    )
