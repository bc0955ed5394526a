"""Score the estimator against a table of published figures, and write that into docs/estimate.md.

`make estimate-accuracy TRUTH=FILE`, or `python -m bench.accuracy FILE`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from clusterkit.cli.frame import console

from .peers import PEERS, Need, Peer, deepspeed
from .report import lines_of, report
from .score import Scores, Spread, score, spread
from .truth import read_rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "estimate.md"
START, END = "<!-- make estimate-accuracy -->", "<!-- end -->"


def main(table: Path) -> None:
    """Print the score of `table`, and replace the part of the page between its marks."""
    scores = score(read_rows(table), with_installed_deepspeed(PEERS))
    console.say("\n".join(report(scores)))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    text = "\n".join(section(scores))
    PAGE.write_text(f"{before}{START}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def with_installed_deepspeed(peers: Mapping[str, Peer]) -> Mapping[str, Peer]:
    """Let the installed DeepSpeed itself speak, where `estimate --score` has its formulas only."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.runtime.zero import stage3, stage_1_and_2  # noqa: PLC0415 - reads the variable

    def zero2(params: int, *, gpus_per_node: int, nodes: int, offload: bool) -> Need:
        cpu, gpu = stage_1_and_2.estimate_zero2_model_states_mem_needs(
            params, num_gpus_per_node=gpus_per_node, num_nodes=nodes, cpu_offload=offload
        )
        return Need(gpu=gpu, cpu=cpu)

    def zero3(
        params: int, largest: int, *, gpus_per_node: int, nodes: int,
        offload_optimizer: bool, offload_params: bool,
    ) -> Need:  # fmt: skip
        needs: Any = stage3.estimate_zero3_model_states_mem_needs(
            params, largest, num_gpus_per_node=gpus_per_node, num_nodes=nodes,
            cpu_offload=offload_optimizer, cpu_offload_params=offload_params, zero_init=True,
        )  # fmt: skip
        return Need(gpu=needs[1], cpu=needs[0])

    name = next(name for name, peer in peers.items() if peer is deepspeed)
    itself = partial(deepspeed, zero2=zero2, zero3=zero3)
    return {**peers, f"{name} (the installed {version('deepspeed')})": itself}


def section(scores: Scores) -> Iterator[str]:
    """Yield the lines of the page."""
    false_fits = sum(one.false_fit for one in scores.fits)
    misfits = sum(one.false_misfit for one in scores.fits)
    beyond = sum(one.beyond_card for one in scores.fits)
    yield f"{scores.rows} published figures, {scores.used} of them with enough of a configuration."
    yield ""
    yield "| error of the estimate | figures | median | 90th percentile |"
    yield "| --- | --: | --: | --: |"
    for name, found in lines_of(scores):
        yield _row(name, found)
    yield ""
    yield (
        f"Of {len(scores.fits)} runs, {false_fits} are said to fit that did not, and {misfits} ran "
        f"that are said not to fit with the default margin ({beyond} of them without any)."
    )
    yield ""
    yield "Other estimators, on those of the same figures of memory that they cover:"
    yield ""
    yield "| estimator | figures | median | 90th percentile |"
    yield "| --- | --: | --: | --: |"
    for name, errors in scores.peers.items():
        yield _row(name, spread(errors))
    yield ""
    yield "| source | figures of memory | median | of throughput | median |"
    yield "| --- | --: | --: | --: | --: |"
    yield from _sources(scores)


def _sources(scores: Scores) -> Iterator[str]:
    memory = scores.by_source()
    rates: dict[str, list[float]] = {}
    for one in scores.speed:
        rates.setdefault(one.row.family, []).append(one.error)
    for source in sorted({*memory, *rates}):
        cells = [source]
        for found in (memory.get(source), spread(rates[source]) if source in rates else None):
            cells += [str(found.rows), f"{found.median:.1%}"] if found else ["", ""]
        yield f"| {' | '.join(cells)} |"


def _row(name: str, found: Spread) -> str:
    if not found.rows:
        return f"| {name} | 0 | | |"
    return f"| {name} | {found.rows} | {found.median:.1%} | {found.p90:.1%} |"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m bench.accuracy TABLE")
    main(Path(sys.argv[1]))
