"""Command line of the runs on a GPU: ``python -m bench.gpu``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.figures import COULD_NOT, BenchError
from bench.gpu.matrix import append, gpu_name, run_all
from bench.gpu.overhead import overhead
from bench.gpu.rows import MATRIX, SHAPES, read_matrix
from bench.gpu.table import lines_of, markdown, summary, tsv


def main(argv: Sequence[str] | None = None) -> int:
    """Measure one part, write its figures into a folder, and print what they come to.

    Return 0, or 2 where it could not be measured.
    """
    options = _parser().parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    measure = {"matrix": _matrix, "overhead": _overhead}[options.part]
    try:
        found = measure(options)
    except BenchError as error:
        print(f"bench.gpu: {options.part}: {error}", file=sys.stderr)
        return COULD_NOT
    (options.out / f"{options.part}.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found))
    return 0


def _matrix(options: argparse.Namespace) -> dict[str, object]:
    gpu, results = gpu_name(), []
    for result in run_all(
        read_matrix(options.table), gpu=gpu, budget_s=options.budget, folder=options.out
    ):
        append(options.out / "runs.jsonl", result)
        row = result.row
        print(f"{row.id} {row.model} {row.strategy}: {result.outcome}", file=sys.stderr, flush=True)
        results.append(result)
    lines = lines_of(results, gpu)
    (options.out / "matrix.tsv").write_text(tsv(lines))
    (options.out / "matrix.md").write_text(markdown(lines, gpu))
    return {"gpu": gpu, **summary(lines)}


def _overhead(options: argparse.Namespace) -> dict[str, object]:
    return overhead(options.rounds, options.model)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("part", choices=("matrix", "overhead"))
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder (build/gpu)")
    parser.add_argument("--table", type=Path, default=MATRIX, help="the runs of the matrix")
    parser.add_argument("--budget", type=float, default=270.0, help="seconds for all runs (270)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the overhead (3)")
    parser.add_argument(
        "--model", choices=SHAPES, default="0.4B", help="what the overhead trains (0.4B)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
