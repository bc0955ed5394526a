"""A bundle: what all nodes answered, in memory and as a folder that can be sent to a colleague.

    manifest.json            schema, job, checks; of each node how it was reached, how probes ended
    n1/nvidia-gpus.out       standard output of a probe; left out where it is empty
    n1/nvidia-gpus.err       standard error, likewise

Judging a bundle needs nothing else, so it gives the same findings anywhere.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from clusterkit import __version__, files
from clusterkit.errors import UserError
from clusterkit.preflight.garbage import uncollected
from clusterkit.preflight.masking import masked
from clusterkit.probes.base import Output, PreflightJob, Reach, ReachProblem
from clusterkit.transport.base import Reply

SCHEMA = 1
MANIFEST = "manifest.json"

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
"""Names of nodes and probes, which become names of files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The recorded answers of all nodes, in rank order, and the job that they are for."""

    job: PreflightJob
    replies: tuple[Reply, ...]
    collected_at: float
    """Seconds since the epoch."""
    seconds: float
    """How long collecting took."""
    checks: tuple[str, ...] = ()
    """Ids of the checks that the nodes were asked for; empty where that is not known."""
    written_by: str = __version__


def prepare_folder(folder: Path) -> None:
    """Make the folder of a bundle, which must be new or empty; nodes are asked after that.

    Raises:
        UserError: the folder holds something, or cannot be made.
    """
    with files.explained(folder, "read"):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} is not empty", hint="name a new folder for the bundle")
    files.create_folder(folder)


def write_bundle(folder: Path, bundle: Bundle) -> None:
    """Write `bundle` into `folder`, which must be new or empty.

    Raises:
        UserError: the folder holds something, or cannot be written.
    """
    prepare_folder(folder)
    for reply in bundle.replies:
        node = folder / reply.node
        if reply.outputs:
            files.create_folder(node)
        for name, output in reply.outputs.items():
            for text, suffix in ((output.stdout, "out"), (output.stderr, "err")):
                if text:
                    files.write_new(node / f"{name}.{suffix}", text)
    # Last, so that a folder with a manifest is whole.
    files.write_json(folder / MANIFEST, _manifest(bundle))


@uncollected()
def read_bundle(folder: Path) -> Bundle:
    """Return the bundle in `folder`.

    Raises:
        UserError: it is none, it is damaged, or a newer clusterkit wrote it.
    """
    manifest = files.read_json(folder / MANIFEST)
    if manifest is None:
        raise UserError(
            f"{folder} is no bundle: it has no readable {MANIFEST}",
            hint="a bundle is written by `clusterkit preflight --save DIR`",
        )
    schema = manifest.get("schema")
    if schema != SCHEMA:
        raise UserError(
            f"{folder} has schema {schema!r}, this clusterkit {__version__} reads {SCHEMA}"
            f" (written by clusterkit {manifest.get('clusterkit', 'of unknown version')})",
            hint="pip install --upgrade clusterkit",
        )
    try:
        return Bundle(
            job=read_job(manifest),
            replies=tuple(_reply(folder, node) for node in manifest["nodes"]),
            collected_at=float(manifest["collected_at"]),
            seconds=float(manifest["seconds"]),
            checks=tuple(str(check) for check in manifest.get("checks", ())),
            written_by=str(manifest["clusterkit"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{folder / MANIFEST} is damaged: {type(error).__name__}: {error}",
            hint="ask for the bundle again",
        ) from error


def read_job(document: Mapping[str, Any], *, hosts: tuple[str, ...] | None = None) -> PreflightJob:
    """Return the job in a JSON document; `hosts` takes the place of its own.

    Raises:
        UserError: the document is damaged.
    """
    try:
        values = _known(PreflightJob, document["job"])
        return PreflightJob(**(values if hosts is None else {**values, "hosts": hosts}))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"the job of a preflight is damaged: {error}") from error


def _manifest(bundle: Bundle) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "clusterkit": bundle.written_by,
        "collected_at": bundle.collected_at,
        "seconds": bundle.seconds,
        "job": masked(bundle.job),
        "checks": bundle.checks,
        "nodes": [
            {
                "name": reply.node,
                "reach": reply.reach,
                "probes": {
                    name: {"exit_code": output.exit_code, "seconds": output.seconds}
                    for name, output in reply.outputs.items()
                },
            }
            for reply in bundle.replies
        ],
    }


def _reply(folder: Path, node: Mapping[str, Any]) -> Reply:
    name = _safe(node["name"])
    reach = _known(Reach, node["reach"])
    if reach.get("problem") is not None:
        reach["problem"] = ReachProblem(reach["problem"])
    here = folder / name
    with files.explained(here, "read"):
        texts = _texts(here) if here.is_dir() else {}
    outputs = {
        _safe(probe): Output(
            stdout=texts.get(f"{probe}.out", ""),
            stderr=texts.get(f"{probe}.err", ""),
            exit_code=ended["exit_code"],
            seconds=float(ended["seconds"]),
        )
        for probe, ended in node["probes"].items()
    }
    return Reply(node=name, reach=Reach(**reach), outputs=outputs)


def _known(kind: type, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for the fields of `kind`; JSON knows no tuples, and their fields do."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in document.items()
        if name in names
    }


@lru_cache(maxsize=1 << 14)
def _safe(name: str) -> str:
    if not _SAFE.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a node or a probe")
    return name


def _texts(folder: Path) -> dict[str, str]:
    # Tens of thousands of small files: without pathlib and buffers they are read in half the time.
    texts = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            with open(entry.path, "rb", buffering=0) as file:  # noqa: PTH123
                texts[entry.name] = file.read().decode(errors="replace")
    return texts
