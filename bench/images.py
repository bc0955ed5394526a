"""How long images take to build from nothing, how large they are, what a second build repeats."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.figures import BenchError
from clusterkit.images.catalogue import IMAGES
from tests.docker import Engine, EngineError
from tests.docker.fixtures import BUILT, Images, images_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One image: built for the first time, and once more with nothing changed."""

    name: str
    first_s: float
    again_s: float
    size_mb: float
    added_mb: float
    """Over the image that it is built on."""
    steps: int
    repeated: int
    """Steps that the second build did not take from the first."""


def measure() -> tuple[Build, ...]:
    """Build the cpu variants on an engine that has nothing yet, and remove it.

    Raises:
        BenchError: there is no engine here, or an image does not build.
    """
    with tempfile.TemporaryDirectory(prefix="ck-bench-") as name:
        folder = Path(name)
        engine = Engine(folder / "dk")
        try:
            engine.up()
            with images_on(engine, folder) as images:
                return tuple(_build(images, each) for each in BUILT)
        except (EngineError, AssertionError) as error:
            raise BenchError(str(error)) from error
        finally:
            engine.down()


def _build(images: Images, name: str) -> Build:
    first, again = images.build(name), images.rebuild(name)
    parent = IMAGES[name].parent
    below = images.build(parent)["size_bytes"] if parent else 0
    return Build(
        name=name,
        first_s=first["seconds"],
        again_s=again["seconds"],
        size_mb=first["size_bytes"] / 1e6,
        added_mb=(first["size_bytes"] - below) / 1e6,
        steps=again["steps"],
        repeated=again["steps"] - again["cached_steps"],
    )


def images_table(builds: Sequence[Build]) -> str:
    """Return the table, an image a line."""
    head = f"{'images, cpu':14}{'first s':>9}{'again s':>9}{'size MB':>9}{'added MB':>10}  repeated"
    lines = [
        f"{build.name:14}{build.first_s:9.1f}{build.again_s:9.1f}{build.size_mb:9.0f}"
        f"{build.added_mb:10.0f}{build.repeated:5} of {build.steps}"
        for build in builds
    ]
    return "\n".join(["", head, *lines])


def images_document(builds: Sequence[Build]) -> dict[str, Any]:
    """Return the figures for the JSON document."""
    return {build.name: asdict(build) for build in builds}
