"""Components of a heterogeneous job, as `--component` and job files give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ConfigDict, create_model

from clusterkit.config.document import Document, Value
from clusterkit.config.fields import Count, Text, ValueProblemError, component_pairs
from clusterkit.config.schema import ClusterModel
from clusterkit.config.validate import foreign_hint, validate
from clusterkit.core.errors import Problem, UserError, did_you_mean
from clusterkit.launch.options import Component

_OF_CLUSTER = (
    "partition", "account", "qos", "constraint", "gpu_type", "gpu_request", "cpus_per_node",
    "memory",
)  # fmt: skip
"""Keys of a cluster that a component may have for itself."""
_SBATCH = "sbatch."

_KEYS: dict[str, Any] = {
    "nodes": (Count | None, None),
    "gpus_per_node": (Count | None, None),
    "image": (Text | None, None),
    **{key: (ClusterModel.model_fields[key].annotation, None) for key in _OF_CLUSTER},
}
_Given: Any = create_model("_Given", __config__=ConfigDict(extra="forbid", frozen=True), **_KEYS)


def parse_components(given: Sequence[str | Mapping[str, str]]) -> tuple[Component, ...]:
    """Return the components of a job, each a mapping or `nodes=2,partition=gpu`.

    Raises:
        UserError: with every problem of them.
    """
    components, problems = [], list[Problem]()
    for number, one in enumerate(given, start=1):
        component, wrong = _parse(one)
        problems += (
            replace(p, message=f"--component {number}: {p.message}", key="component", position=None)
            for p in wrong
        )
        components.append(component)
    if problems:
        raise UserError(problems=problems)
    return tuple(components)


def _meant(key: str) -> str:
    known = foreign_hint(key, "slurm", "cluster", "job")
    return known or did_you_mean(key, _KEYS) or f"keys: {', '.join(_KEYS)}, sbatch.KEY"


def _parse(given: str | Mapping[str, str]) -> tuple[Component, tuple[Problem, ...]]:
    try:
        pairs: Mapping[str, str] = component_pairs(given)
    except ValueProblemError as error:
        return Component(nodes=1), (Problem(message=str(error), hint=error.hint),)
    keys = {key: text for key, text in pairs.items() if not key.startswith(_SBATCH)}
    data: dict[str, Value] = {key.replace("-", "_"): text for key, text in keys.items()}
    document = Document(source="", text="", data=data)
    model, problems = validate(
        document,
        _Given,
        {1: _Given.model_fields},
        meant=lambda path: _meant(str(path[-1])),
    )
    if "nodes" not in data:
        problems = (*problems, Problem(message="no nodes", hint="such as nodes=1"))
    of_cluster = {key: getattr(model, key) for key in _OF_CLUSTER}
    component = Component(
        nodes=model.nodes or 1,
        gpus_per_node=model.gpus_per_node,
        image=model.image,
        cluster={key: value for key, value in of_cluster.items() if value is not None},
        sbatch_options={
            key.removeprefix(_SBATCH).replace("_", "-"): text
            for key, text in pairs.items()
            if key.startswith(_SBATCH)
        },
    )
    return component, problems
