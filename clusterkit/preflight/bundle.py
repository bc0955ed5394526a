"""A bundle: what all nodes answered, in memory and as a folder that can be sent to a colleague.

    manifest.json            schema, job, checks; of each node how it was reached, how probes ended
    n1/nvidia-gpus.out       standard output of a probe; left out where it is empty
    n1/nvidia-gpus.err       standard error, likewise

Judging a bundle needs nothing else, so it gives the same findings anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.version import __version__
from clusterkit.preflight.masking import masked
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import PreflightJob

SCHEMA = 1
MANIFEST = "manifest.json"


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
