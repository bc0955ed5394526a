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
from clusterkit.config.build import build_cluster, kinds_of
from clusterkit.config.document import (
    LARGEST,
    Document,
    in_order,
    parse_document,
    read_own_text,
    read_text,
)
from clusterkit.config.fields import MAX_HOSTS
from clusterkit.config.merge import Given, Merge, lay_file
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
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings that hold in `cwd`.

    `overrides` are what flags say: `cluster` chooses the default cluster, every other entry is a
    scalar key of that cluster; None stands for a flag that was not given. A `CLUSTERKIT_<KEY>`
    variable counts for every cluster whose kind knows the key.

    Raises:
        UserError: with every problem of every layer.
    """
    return _Loader(
        cwd=Path.cwd() if cwd is None else cwd,
        environ=os.environ if environ is None else environ,
        overrides={key: v for key, v in (overrides or {}).items() if v is not None},
    ).load()


def builtin_settings() -> Settings:
    """Return the settings without any file, variable or flag: the cluster `local` alone."""
    return _Loader(cwd=Path("/"), environ={}, overrides={}).merged([])


class _Loader:
    """One load: collects problems on the way and raises them together at its end."""

    def __init__(
        self, *, cwd: Path, environ: Mapping[str, str], overrides: Mapping[str, Any]
    ) -> None:
        self.cwd = cwd
        self.environ = environ
        self.overrides = overrides
        self.problems: list[Problem] = []
        self.warnings: dict[str, tuple[Problem, ...]] = {}
        self.merges: dict[str, Merge] = {LOCAL: Merge()}

    def load(self) -> Settings:
        """Return the settings of the files there are, or raise everything that is wrong."""
        return self.merged([*self._read_files()])

    def merged(self, files: list[_File]) -> Settings:
        """Return the settings that these files, the environment and the flags make."""
        for file in reversed(files):
            self._lay_clusters(file)
        default = self._default_cluster(files)
        variables = self._lay_environment()
        self._lay_flags(default)
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

    def _read_files(self) -> Iterator[_File]:
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
                self.problems.append(
                    Problem(
                        message=f"{name!r} is no name for a cluster",
                        key="clusters",
                        position=file.document.key_position(("clusters", name)),
                        hint="letters, digits, '.', '_' and '-' can stand in it",
                    )
                )
                continue
            merge = self.merges.setdefault(name, Merge())
            base = file.path.absolute().parent
            lay = lay_file(merge, name, model or ClusterModel(), file.document, file.origin, base)
            self.problems += lay

    def _default_cluster(self, files: list[_File]) -> Given:
        given = self._named_default(files)
        if given.value not in self.merges:
            self.problems.append(
                Problem(
                    message=f"unknown cluster {given.value!r}",
                    key="default_cluster",
                    position=given.position,
                    hint=choices_hint(given.value, self.merges),
                )
            )
        return given

    def _named_default(self, files: list[_File]) -> Given:
        if flag := self.overrides.get("cluster"):
            return _from_flag("cluster", str(flag))
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
        for key, value in self._parsed(texts, sources.variable).items():
            for name, merge in self.merges.items():
                if _kind(name, merge) in kinds_of(key):
                    merge.put(key, _from_variable(sources.variable(key), value))
        return sources.unread_variables(self.environ, SCALAR_KEYS)

    def _lay_flags(self, default: Given) -> None:
        merge = self.merges.get(default.value)
        if merge is None:
            return
        texts = {key: value for key, value in self.overrides.items() if key != "cluster"}
        for key, value in self._parsed(texts, _flag).items():
            merge.put(key, _from_flag(key, value))

    def _parsed(self, texts: Mapping[str, Any], spell: Any) -> dict[str, Any]:
        if not texts:
            return {}
        try:
            model = ClusterModel.model_validate(dict(texts))
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                key = str(detail["loc"][0])
                message, hint = complaint(detail, spell(key))
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
        self.problems.append(
            Problem(
                message=f"cluster {name!r} has no kind",
                key=where,
                position=first[1].position if first else None,
                hint=f"add `kind: {' | '.join(ClusterKind)}`",
            )
        )

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


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _from_flag(key: str, value: Any) -> Given:
    position = Position(source=f"flag {_flag(key)}")
    return Given(value=value, origin=Origin(layer=Layer.FLAG, source=_flag(key)), position=position)


def _from_variable(name: str, value: Any) -> Given:
    return Given(
        value=value,
        origin=Origin(layer=Layer.ENVIRONMENT, source=name),
        position=sources.environment_position(name),
    )
