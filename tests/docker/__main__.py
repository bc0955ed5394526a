"""Command line of the engine: `python -m tests.docker up|down|env`."""

from __future__ import annotations

import argparse
import sys

from tests.docker.engine import Engine, EngineError, default_root


def main() -> int:
    """Run one verb; return 2 where it could not be done."""
    parser = argparse.ArgumentParser(prog="python -m tests.docker", description=__doc__)
    parser.add_argument("verb", choices=("up", "down", "env"))
    verb = parser.parse_args().verb
    engine = Engine(default_root())
    try:
        if verb == "up":
            engine.up()
            print(engine.base_image())
        elif verb == "down":
            engine.down()
        else:
            for name, value in engine.environment.items():
                print(f"export {name}={value}")
    except EngineError as error:
        print(f"docker: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
