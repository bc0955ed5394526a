"""What runs in processes of its own: `python -m bench.judge.client write|evaluate|split DIR`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from bench.judge.fleet import fleet
from clusterkit.preflight.bundle import write_bundle
from clusterkit.preflight.bundle_reader import read_bundle
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.checks.base import Tier
from clusterkit.preflight.evaluate import evaluate


def write(folder: Path, nodes: int) -> list[str]:
    """Write the bundle of a made-up cluster; return the nodes that are unfit."""
    made_up = fleet(nodes)
    write_bundle(folder, made_up.bundle)
    return list(made_up.unfit)


def judge(folder: Path) -> dict[str, object]:
    """Judge a bundle that is in memory; return who is unfit, and the seconds."""
    bundle = read_bundle(folder)
    checks = [check for check in all_checks() if check.tier is not Tier.NETWORK]
    began, began_cpu = time.perf_counter(), time.process_time()
    report = evaluate(bundle, checks)
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    return {"exclude": report.exclude, "wall_s": wall_s, "cpu_s": cpu_s}


def split(folder: Path) -> int:
    """Read the same files and count their words."""
    words = 0
    for node in folder.iterdir():
        if node.is_dir():
            texts = (path.read_bytes().decode() for path in node.iterdir())
            words += sum(len(line.split()) for text in texts for line in text.splitlines())
    return words


def main(verb: str, folder: str, nodes: str = "0") -> int:
    """Do one of the three, and print its result as JSON."""
    if verb == "write":
        print(json.dumps(write(Path(folder), int(nodes))))
    else:
        print(json.dumps({"evaluate": judge, "split": split}[verb](Path(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
