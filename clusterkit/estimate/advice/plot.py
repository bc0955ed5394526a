"""Draw memory against the limit and throughput over GPUs, with matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterkit.core.html import make_bare, new_figure, require_drawing, write_figure
from clusterkit.estimate.results import Kind, peak_parts_of

if TYPE_CHECKING:
    from clusterkit.estimate.advice.recommend import Answer, Candidate
    from clusterkit.estimate.speed.step_time import Point

_COLOURS = {
    Kind.PARAMETERS: "#0072b2",
    Kind.GRADIENTS: "#56b4e9",
    Kind.OPTIMIZER: "#009e73",
    Kind.ACTIVATIONS: "#e69f00",
    Kind.TEMPORARY: "#cc79a7",
}
"""Of Okabe and Ito: they can be told apart by people who see few colours."""
_CUT = 2.0
"""Bars end at so many times the limit: two strokes, and how long they are, stand beside them."""


def draw(path: Path, answer: Answer) -> None:
    """Draw the candidates' memory and the scaling of the subject into `path`.

    Raises:
        UserError: as `require_drawing`, or the file cannot be written.
    """
    require_drawing(path)
    candidates = answer.candidates
    figure = new_figure(11, 1.6 + 0.34 * max(len(candidates), 8))
    memory, scaling = figure.subplots(1, 2, width_ratios=(3, 2))
    _memory(memory, candidates)
    _scaling(scaling, answer.subject, answer.points())
    handles, labels = memory.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=5, fontsize=8, frameon=False)
    write_figure(path, figure)


def _memory(axes: Any, candidates: Sequence[Candidate]) -> None:
    limit = candidates[0].memory.limit / 1e9
    longest = _CUT * limit
    for row, one in enumerate(candidates):
        start = 0.0
        for kind, amount in peak_parts_of(one.memory).items():
            shown = min(amount / 1e9, max(longest - start, 0.0))
            axes.barh(row, shown, left=start, color=_COLOURS[kind], height=0.7)
            start += shown
        total = one.memory.device.likely / 1e9
        axes.annotate(
            ("" if total <= longest else "// ")
            + f"{total:,.0f}"
            + ("" if one.fits else "  does not fit"),
            (start, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
    axes.axvline(limit, color="black", linewidth=1.2, linestyle="--")
    axes.text(limit, -0.9, f"limit {limit:.0f} GB", ha="center", va="bottom", fontsize=8)
    axes.set_yticks(range(len(candidates)), [one.name for one in candidates], fontsize=8)
    axes.set_ylim(len(candidates) - 0.4, -0.9)
    axes.set_xlim(0, longest * 1.22)
    axes.set_xlabel("memory per GPU at the peak, GB (10^9 bytes)")
    for kind, colour in _COLOURS.items():
        axes.barh(0, 0, color=colour, label=str(kind))
    make_bare(axes)


def _scaling(axes: Any, subject: Candidate, points: Sequence[Point]) -> None:
    gpus = [point.gpus for point in points]
    rates = [point.tokens_per_s / point.gpus for point in points]
    axes.plot(gpus, rates, marker="o", color=_COLOURS[Kind.PARAMETERS])
    axes.set_xscale("log", base=2)
    axes.set_xticks(gpus, [f"{count:,}" for count in gpus], fontsize=8, rotation=45)
    axes.minorticks_off()
    axes.set_ylim(0, 1.15 * max(rates))
    axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:,.0f}")
    axes.tick_params(axis="y", labelsize=8)
    node = subject.setup.gpus_per_node
    if gpus[0] < node < gpus[-1] or node == gpus[0]:
        axes.axvline(node, color="grey", linewidth=0.8, linestyle=":")
        axes.text(node, 0.02 * max(rates), " one node", fontsize=8, color="grey")
    axes.set_xlabel("GPUs, the same micro batch on each")
    axes.set_ylabel(f"tokens/s per GPU, {subject.name}")
    make_bare(axes)
