"""The keys of `clusterkit.yaml`: their types, and their only documentation.

`keys.tsv` has a row for each key of a cluster; a type there is a name of `config.fields`. The
reference page and `clusterkit explain KEY` are made from it. Defaults are those of
`model.ClusterSpec`; a model here holds what one file says, so every key may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field, create_model

from clusterkit.config import fields
from clusterkit.core.data import read_table
from clusterkit.core.model import ClusterKind, ClusterSpec

OF_PLATFORMS = (
    "gpu_request", "memory", "extra_directives", "skip_directives", "srun_args", "env",
    "allowed_env", "modules", "setup", "network_interface", "mounts",
)  # fmt: skip
"""Keys of a cluster that a platform can give."""

_CONFIG = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def _key(kind: Any, description: str, example: str, kinds: str = "all") -> Any:
    """Return the type of a key, and what the reference says of it."""
    named = list(ClusterKind) if kinds == "all" else kinds.split(",")
    about: Any = {"kinds": [str(kind) for kind in named]}
    return kind | None, Field(
        default=None, description=description, examples=[example], json_schema_extra=about
    )


_KEYS = {
    row["key"]: _key(getattr(fields, row["type"]), row["meaning"], row["example"], row["kinds"])
    for row in read_table(__file__, "keys.tsv")
}

ClusterModel: Any = create_model(
    "ClusterModel",
    __config__=_CONFIG,
    __doc__="One entry of `clusters:` as a file gives it.",
    **_KEYS,
)

ConfigModel: Any = create_model(
    "ConfigModel",
    __config__=_CONFIG,
    __doc__="A whole `clusterkit.yaml`; top-level keys that begin with `x-` are left to you.",
    default_cluster=_key(
        fields.Text,
        "Cluster that commands use unless --cluster says otherwise; without it, `local`.",
        "a100",
    ),
    default_framework=_key(
        fields.Text,
        "Framework of jobs that name none; without it, `torchrun` for Python and `env` for other "
        "programs.",
        "deepspeed",
    ),
    clusters=_key(
        dict[str, ClusterModel | None],
        "The clusters by name; an entry of the name `local` changes the one that is always there. "
        "User and project file are merged key by key.",
        "{a100: {kind: slurm, partition: gpu}}",
    ),
)

PlatformClusterModel: Any = create_model(
    "PlatformClusterModel",
    __config__=_CONFIG,
    __doc__="What a platform, or one of its instance types, gives to clusters.",
    **{key: _KEYS[key] for key in OF_PLATFORMS},
)

InstanceModel: Any = create_model(
    "InstanceModel",
    __config__=_CONFIG,
    __doc__="An instance type of a platform.",
    gpus=(fields.Count | None, None),
    gpu=(fields.Text | None, None),
    devices=(fields.Count | None, None),  # RDMA devices of the fabric between nodes
    nics=(fields.Count | None, None),  # network cards of a fabric without RDMA
    gbit=(fields.Count | None, None),  # Gbit/s of each
    cluster=(PlatformClusterModel | None, None),
)

PlatformModel: Any = create_model(
    "PlatformModel",
    __config__=_CONFIG,
    __doc__="A file of `templates/platforms/`, or one of a third party's.",
    about=(fields.Text | None, None),
    source=(fields.Texts | None, None),
    like=(
        fields.Text | None,
        None,
    ),  # of which platform it has net_plugin and instances, if not own
    net_plugin=(fields.Text | None, None),  # NCCL's plug-in: a library, where it is known with path
    cluster=(PlatformClusterModel | None, None),
    instances=(dict[fields.Text, InstanceModel | None] | None, None),
)


def kinds_of(key: str) -> tuple[ClusterKind, ...]:
    """Return the kinds of cluster that `key` applies to."""
    extra: Any = ClusterModel.model_fields[key].json_schema_extra
    return tuple(ClusterKind(kind) for kind in extra["kinds"])


def as_mapping(spec: ClusterSpec) -> Mapping[str, Any]:
    """Return the values of a cluster by key, in the order of the schema."""
    return {key: getattr(spec, key) for key in ClusterModel.model_fields if hasattr(spec, key)}
