"""Command line of the engine: `python -m tests.docker up|down|env|build`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docker.engine import Engine, EngineError, MissingEngineError, default_root
from tests.docker.fixtures import BUILT, images_on
from tests.helpers import time_left


def main() -> int:
    """Run one verb; return 2 where it could not be done."""
    parser = argparse.ArgumentParser(prog="python -m tests.docker", description=__doc__)
    parser.add_argument("verb", choices=("up", "down", "env", "build"))
    verb = parser.parse_args().verb
    engine = Engine(default_root())
    try:
        if verb == "up":
            engine.up()
            print(engine.base_image())
        elif verb == "build":
            build()
        elif verb == "down":
            engine.down()
        else:
            for name, value in engine.environment.items():
                print(f"export {name}={value}")
    except MissingEngineError as error:
        print(f"docker: {error}", file=sys.stderr)
        return 2 if os.environ.get("CI") == "true" else 0  # what needs one is skipped
    except (AssertionError, EngineError) as error:
        print(f"docker: {error}", file=sys.stderr)
        return 2
    return 0


def build() -> None:
    """Build the images that tests of containers need.

    CI begins with an engine that has nothing, or leaves them out.
    """
    if not time_left.may_begin(time_left.DOCKER):
        print(f"image {', '.join(BUILT)}: {time_left.OVER}", flush=True)
        return
    engine = Engine(default_root())
    if os.environ.get("CI") == "true":
        engine.down()
    with (
        engine.running(),
        tempfile.TemporaryDirectory(prefix="clusterkit-") as lent,
        images_on(engine, Path(lent)) as images,
    ):
        for name in BUILT:
            try:
                took = images.build(name)["seconds"]
            except subprocess.TimeoutExpired:
                if time_left.may_begin(time_left.DOCKER):
                    raise
                print(f"image {name}: {time_left.OVER}", flush=True)
                break
            print(f"image {name}: {took:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
