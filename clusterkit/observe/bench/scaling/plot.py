"""Draw throughput and efficiency over the size, with matplotlib (the extra `plot`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusterkit.core.plots import make_bare, new_figure, require_drawing, write_figure
from clusterkit.observe.bench.scaling.result import FAIR, Scaling, in_percent

_MEASURED = "#0072b2"
_SHORT = "#d55e00"
_IDEAL = "#777777"
"""Of Okabe and Ito: they can be told apart by people who see few colours."""


def draw(path: Path, found: Scaling) -> None:
    """Draw the runs that were measured into `path`.

    Raises:
        UserError: as `require_drawing`, or the file cannot be written.
    """
    require_drawing(path)
    figure = new_figure(9.5, 3.8)
    throughput, efficiency = figure.subplots(1, 2, width_ratios=(3, 2))
    _throughput(throughput, found)
    _efficiency(efficiency, found)
    title = f"{found.script}, {found.framework} on {found.cluster}"
    figure.suptitle(title, fontsize=10, parse_math=False)  # $ may be in the name of a file
    write_figure(path, figure)


def _throughput(axes: Any, found: Scaling) -> None:
    rows = [(row.size.count, rate) for row in found.rows if (rate := found.rate(row))]
    counts = [count for count, _ in rows]
    values = [rate.per_s for _, rate in rows]
    ideal = [values[0] * count / counts[0] for count in counts]
    spread = (
        [max(rate.per_s - rate.low, 0) for _, rate in rows],
        [max(rate.high - rate.per_s, 0) for _, rate in rows],
    )
    axes.plot(counts, ideal, color=_IDEAL, linestyle="--", linewidth=1, label="ideal")
    axes.errorbar(
        counts, values, yerr=spread, color=_MEASURED, marker="o", capsize=3, label="measured"
    )
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    # One line that was far too fast is not to press all the others down: its bar is cut.
    axes.set_ylim(0, 1.15 * max(*ideal, *values))
    axes.set_xlim(0, 1.05 * counts[-1])
    axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:,.0f}" if rate >= 10 else f"{rate:g}")
    axes.set_xlabel(found.by.value)
    axes.set_ylabel(f"{found.unit}/s")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    make_bare(axes)


def _efficiency(axes: Any, found: Scaling) -> None:
    shown = [(row, share) for row in found.rows if (share := found.efficiency(row)) is not None]
    for place, (row, share) in enumerate(shown):
        colour = _SHORT if found.short(row) else _MEASURED
        axes.bar(place, 100 * share, color=colour, width=0.6)
        axes.text(place, 100 * share + 1.5, in_percent(share), ha="center", fontsize=8)
    axes.axhline(100 * FAIR, color=_IDEAL, linestyle=":", linewidth=1)
    axes.set_xticks(range(len(shown)), [f"{row.size.count:,}" for row, _ in shown])
    axes.set_ylim(0, 115 * max(1.0, *(share for _, share in shown)))
    axes.set_xlabel(found.by.value)
    axes.set_ylabel("efficiency, %")
    make_bare(axes)
