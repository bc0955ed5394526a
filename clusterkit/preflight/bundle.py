"""A bundle: what all nodes answered, in memory and as a folder that can be sent to a colleague.

    manifest.json            schema, job, checks; of each node how it was reached, how probes ended
    n1/nvidia-gpus.out       standard output of a probe; left out where it is empty
    n1/nvidia-gpus.err       standard error, likewise

Judging a bundle needs nothing else, so it gives the same findings anywhere.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.version import __version__
from clusterkit.preflight.env_lint.variables import concerns_us
from clusterkit.preflight.probes.gpu import dcgm_diag, nccl_tests
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import Output, PreflightJob

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

    def with_outputs(self, probe: str, outputs: Mapping[str, Output]) -> Bundle:
        """Return it with what a probe had to say of some nodes afterwards, by their names."""
        replies = tuple(
            dataclasses.replace(reply, outputs={**reply.outputs, probe: outputs[reply.node]})
            if reply.node in outputs
            else reply
            for reply in self.replies
        )
        return dataclasses.replace(self, replies=replies)


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


MASK = "(not kept)"
_ASKS = frozenset({nccl_tests.ASK, dcgm_diag.ASK})


def masked(job: PreflightJob) -> PreflightJob:
    """Return `job` with the value of every variable masked that no check reads.

    Names alone do not tell a secret, so what is kept is listed, and not what is hidden.
    """
    env = {
        name: value if name in _ASKS or concerns_us(name) else MASK
        for name, value in job.env.items()
    }
    return dataclasses.replace(job, env=env)


@contextmanager
def uncollected() -> Iterator[None]:
    """Do without the cyclic garbage collector inside the block (or the decorated function).

    The facts of thousands of nodes are millions of frozen values that stay and cannot form cycles;
    looking through all of them again and again doubles the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
