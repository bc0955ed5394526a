"""Platforms: what a cloud and its fabric give to clusters, from files of `templates/platforms/`.

A file is read as strictly as a configuration, and says where its values are from. Recognition looks
at this machine alone, as the login node of a cluster is of the same cloud as its nodes; it reads
files and asks nobody.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit.config.document import (
    Document,
    in_order,
    parse_document,
    read_own_text,
    read_text,
)
from clusterkit.config.schema import OF_PLATFORMS, InstanceModel, PlatformModel
from clusterkit.config.validate import validate
from clusterkit.core import metadata, shell
from clusterkit.core.data import data_dir, read_table
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.metadata import CLOUDS, cloud_of, read_dmi
from clusterkit.core.model import NO_PLATFORM, ClusterSpec

AUTO = "auto"
JOINED = frozenset({"allowed_env", "modules", "setup", "mounts"})
"""Lists of a platform that go before the cluster's own; it would lose the fabric with them."""

_FOLDER = "templates/platforms"
_SHARED = ("net_plugin", "instances")
"""What a platform has of the one that it is `like`, unless it has its own."""
_KEYS_AT = {
    1: PlatformModel.model_fields,
    2: OF_PLATFORMS,
    3: InstanceModel.model_fields,
    4: OF_PLATFORMS,
}

_INSTANCE_TYPE = re.compile(r"(?:[\w./-]{0,200}/)?([\w.-]{1,64})\s*", re.ASCII)
"""As metadata services write it: Google has `projects/1/machineTypes/a3-megagpu-8g`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A platform as its file gives it."""

    name: str
    document: Document
    model: Any
    """A `PlatformModel`."""

    @property
    def instances(self) -> Mapping[str, Any]:
        """The instance types by name, each an `InstanceModel`."""
        return {name: one or InstanceModel() for name, one in (self.model.instances or {}).items()}

    def values(self, instance_type: str | None) -> dict[tuple[str, ...], Any]:
        """Return what it gives to a cluster by paths such as `("env", "NCCL_NET")`.

        Raises:
            UserError: it knows no such instance type.
        """
        instance = InstanceModel()
        if instance_type is not None:
            known = self.instances
            if instance_type not in known:
                message = f"platform {self.name} knows no instance type {instance_type!r}"
                hint = choices_hint(instance_type, known) if known else "remove it: it lists none"
                raise UserError(message, hint=hint)
            instance = known[instance_type]
        given: dict[tuple[str, ...], Any] = {}
        for model in (self.model.cluster, instance.cluster):
            for key in OF_PLATFORMS:
                value = getattr(model, key, None)
                if isinstance(value, Mapping):
                    given |= {(key, name): text for name, text in value.items()}
                elif value is not None:
                    before = given.get((key,), ()) if key in JOINED else ()
                    given[key,] = (*before, *value) if before else value
        if instance.gpus is not None:
            given["gpus_per_node",] = instance.gpus
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognised:
    """A platform that this machine is on, and by what it was recognised."""

    name: str
    sign: str


def platform_names() -> tuple[str, ...]:
    """Return the platforms that clusterkit ships."""
    return tuple(sorted(path.stem for path in data_dir(_FOLDER).glob("*.yaml")))


def instance_of(platform: str, instance_type: str | None) -> Any:
    """Return an `InstanceModel` of a platform; an empty one where it is not known."""
    if instance_type is None or platform in {"", AUTO, NO_PLATFORM}:
        return InstanceModel()
    try:
        return load_platform(platform).instances.get(instance_type) or InstanceModel()
    except UserError:  # a file that others may write, say, of which the configuration was judged
        return InstanceModel()


def net_plugin_of(cluster: ClusterSpec) -> str | None:
    """Return the library of NCCL's plug-in for the fabric of a cluster; None where it has none."""
    model = _model_of(cluster)
    return model.net_plugin if model is not None else None


def types_with_needs(cluster: ClusterSpec) -> tuple[str, ...]:
    """Return the instance types of its platform that need what the others do not."""
    instances = getattr(_model_of(cluster), "instances", None) or {}
    return tuple(name for name, one in instances.items() if one is not None and one.cluster)


def _model_of(cluster: ClusterSpec) -> Any:
    """Return the `PlatformModel` of a cluster; None where it has none."""
    if cluster.platform in {AUTO, NO_PLATFORM}:
        return None
    try:
        return load_platform(cluster.platform).model
    except UserError:  # as above: judged before
        return None


def fabric_of(instance: Any) -> str:
    """Return in words what joins the nodes of an `InstanceModel`; nothing where it does not say."""
    speed = f" of {instance.gbit} Gbit/s" if instance.gbit else ""
    if instance.devices:
        return f"{instance.devices} RDMA devices{speed}"
    return f"{instance.nics} network cards{speed}" if instance.nics else ""


def is_file_name(text: str) -> bool:
    """Tell whether the key `platform` names a file."""
    return "/" in text or text.endswith((".yaml", ".yml"))


def load_platform(named: str, *, trusted: frozenset[int] = frozenset()) -> Platform:
    """Return a platform by its name, or from a file of the user's own.

    Raises:
        UserError: there is none of the name, or everything that is wrong with the file.
    """
    if is_file_name(named):
        path, name = Path(named), Path(named).stem
        hint = f"if you trust it, name a copy of your own: cp {shell.quote(named)} platform.yaml"
        text = read_own_text(path, use="set up jobs by it", hint=hint, trusted=trusted)
    else:
        path, name = _shipped(named), named
        text = read_text(path)
    document = parse_document(text, source=str(path))
    model, problems = validate(document, PlatformModel, _KEYS_AT)
    if problems:
        raise UserError(problems=in_order(problems))
    if model.like is not None:
        _shipped(model.like)  # a file of its own could be like itself
        base = load_platform(model.like).model
        missing = {key for key in _SHARED if getattr(model, key) is None}
        model = model.model_copy(update={key: getattr(base, key) for key in missing})
    return Platform(name=name, document=document, model=model)


def _shipped(name: str) -> Path:
    """Return the file of a platform that clusterkit ships.

    Raises:
        UserError: there is none of the name.
    """
    names = platform_names()
    if name not in names:
        hint = choices_hint(name, (AUTO, NO_PLATFORM, *names))
        raise UserError(f"there is no platform {name!r}", hint=hint)
    return data_dir(_FOLDER) / f"{name}.yaml"


def recognise(root: Path) -> Recognised | None:
    """Return the platform of the machine whose files are below `root`; None for none."""
    for row in _signs(root):
        path = row["path"]
        if path == "-" or os.access(root / path.lstrip("/"), os.F_OK):
            there = "" if path == "-" else f" and {path}"
            said = " ".join(CLOUDS[row["cloud"]])
            return Recognised(name=row["platform"], sign=f"{said}{there}")
    return None


def platforms_of_cloud(root: Path) -> tuple[str, ...]:
    """Return the platforms that the cloud of a machine has; none where it is in no known cloud."""
    return tuple(dict.fromkeys(row["platform"] for row in _signs(root)))


def instance_type_of(root: Path) -> str | None:
    """Return the instance type of this machine; None where nobody tells.

    AWS's firmware tells it; other clouds are asked. What is believed is one word.
    """
    cloud, kind = cloud_of(root), metadata.INSTANCE_TYPE
    answer = read_dmi(root, "product_name") if cloud == "aws" else None
    if cloud is not None and any(row["tells"] == kind for row in metadata.questions(cloud)):
        answer = metadata.answers(cloud, (kind,))[kind]
    found = _INSTANCE_TYPE.fullmatch(answer or "")
    return found[1] if found else None


def _signs(root: Path) -> Iterator[Mapping[str, str]]:
    cloud = cloud_of(root)
    rows = read_table(data_dir(_FOLDER) / "signs.tsv") if cloud is not None else ()
    yield from (row for row in rows if row["cloud"] == cloud)
