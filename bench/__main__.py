"""Command line of the benchmarks: ``python -m bench``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import diagnose, fanout, images, judge, link, login, output, race, report, startup
from bench.fanout.table import fanout_document, fanout_table
from bench.figures import COULD_NOT, BenchError
from bench.judge.table import judge_document, judge_table


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 0 whether goals are met or not, 2 where something did not run."""
    options = _parser().parse_args(argv)
    document = report.frame(sys.argv)
    print(report.heading(document))
    failed = False
    for name, part in PARTS.items():
        if options.only in {None, name}:
            try:
                table, document[name] = part(options)
            except BenchError as error:
                failed = True
                print(f"bench: {name}: {error}", file=sys.stderr)
            else:
                print(table)
    report.finish(document)
    print(report.closing(document))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return COULD_NOT if failed else 0


def _startup(options: argparse.Namespace) -> tuple[str, object]:
    found = startup.measure(options.runs)
    return report.startup_table(found), report.startup_document(found)


def _race(options: argparse.Namespace) -> tuple[str, object]:
    rounds = race.measure(options.rounds)
    return report.race_table(rounds), report.race_document(rounds)


def _fanout(options: argparse.Namespace) -> tuple[str, object]:
    rounds = fanout.measure(options.rounds)
    return fanout_table(rounds), fanout_document(rounds)


def _judge(options: argparse.Namespace) -> tuple[str, object]:
    judged = judge.measure(options.rounds)
    return judge_table(judged), judge_document(judged)


def _output(options: argparse.Namespace) -> tuple[str, object]:
    rounds = output.measure(options.rounds)
    return output.output_table(rounds), output.output_document(rounds)


def _diagnose(options: argparse.Namespace) -> tuple[str, object]:
    rounds = diagnose.measure(options.rounds)
    return diagnose.diagnose_table(rounds), diagnose.diagnose_document(rounds)


def _link(options: argparse.Namespace) -> tuple[str, object]:
    rounds = link.measure(options.rounds)
    return link.link_table(rounds), link.link_document(rounds)


def _login(options: argparse.Namespace) -> tuple[str, object]:
    rounds = login.measure(options.rounds)
    return login.login_table(rounds), login.login_document(rounds)


def _images(_options: argparse.Namespace) -> tuple[str, object]:
    builds = images.measure()
    return images.images_table(builds), images.images_document(builds)


PARTS = {
    "startup": _startup,
    "race": _race,
    "fanout": _fanout,
    "judge": _judge,
    "output": _output,
    "diagnose": _diagnose,
    "link": _link,
    "login": _login,
    "images": _images,
}
"""What can be measured: each returns its table, and its part of the JSON document."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=tuple(PARTS), help="measure one part")
    parser.add_argument("--runs", type=_count, default=30, help="starts of each command (30)")
    parser.add_argument(
        "--rounds", type=_count, default=7, help="rounds of the others that count (7)"
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
