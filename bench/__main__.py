"""Command line of the benchmarks: ``python -m bench``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import fanout, race, report, startup
from bench.fanout.table import fanout_document, fanout_table
from bench.figures import BenchError

COULD_NOT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 0 whether goals are met or not, 2 where something did not run."""
    options = _parser().parse_args(argv)
    document = report.frame(sys.argv)
    print(report.heading(document))
    failed = False
    if options.only in {None, "startup"}:
        try:
            found = startup.measure(options.runs)
            print(report.startup_table(found))
            document["startup"] = report.startup_document(found)
        except BenchError as error:
            failed = _could_not("startup", error)
    if options.only in {None, "race"}:
        try:
            rounds = race.measure(options.rounds)
            print(report.race_table(rounds))
            document["race"] = report.race_document(rounds)
        except BenchError as error:
            failed = _could_not("race", error)
    if options.only in {None, "fanout"}:
        try:
            runs = fanout.measure(options.rounds)
            print(fanout_table(runs))
            document["fanout"] = fanout_document(runs)
        except BenchError as error:
            failed = _could_not("fanout", error)
    report.finish(document)
    print(report.closing(document))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return COULD_NOT if failed else 0


def _could_not(part: str, error: BenchError) -> bool:
    print(f"bench: {part}: {error}", file=sys.stderr)
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parts = ("startup", "race", "fanout")
    parser.add_argument("--only", choices=parts, help="measure one of the three")
    parser.add_argument("--runs", type=_count, default=30, help="starts of each command (30)")
    parser.add_argument(
        "--rounds", type=_count, default=7, help="races and fan-outs that count (7)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the figures")
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
