"""How well a script scales: one page of HTML that needs no network, and a figure of matplotlib."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from clusterkit.core.data import read_template
from clusterkit.core.html import (
    environment,
    make_bare,
    new_figure,
    policy,
    require_drawing,
    write_figure,
)
from clusterkit.core.version import __version__
from clusterkit.observe.bench.scaling.result import (
    FAIR,
    Cause,
    Scaling,
    figure,
    in_percent,
    in_words,
    step_time,
)

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720.0, 300.0, 78.0, 34.0
_TOP, _RIGHT = 14.0, 110.0
"""Room for what stands beside the last point."""


def page(found: Scaling, causes: Mapping[int, tuple[Cause, ...]]) -> str:
    """Return the result as one HTML document that loads nothing."""
    style = read_template("pages/preflight.css")
    style += read_template("pages/scaling.css")
    return (
        environment()
        .get_template("scaling.html.j2")
        .render(
            style=Markup(style),  # noqa: S704 - ours
            policy=policy(style),
            version=__version__,
            date=f"{datetime.fromtimestamp(time.time(), tz=UTC):%Y-%m-%d %H:%M UTC}",
            good=found.base is not None
            and not any(row.problem or found.short(row) or found.beyond(row) for row in found.rows),
            found=found,
            causes=causes,
            points=_points(found),
            picture={"width": _WIDTH, "height": _HEIGHT, "left": _LEFT, "bottom": _BOTTOM},
            counted=lambda row: in_words(found.by, row.size.count),
            figure=figure,
            step_time=step_time,
            fair=FAIR,
            in_percent=in_percent,
        )
    )


def _points(found: Scaling) -> tuple[dict[str, Any], ...]:
    """Return the runs in the picture: where each stands, and what is written beside it."""
    shown = [(row, rate) for row in found.rows if (rate := found.rate(row))]
    if not shown:
        return ()
    first, last = shown[0], shown[-1]
    each = first[1].per_s / first[0].size.count
    # One line that was far too fast is not to press all the others down: its bar is cut.
    highest = 1.15 * max(each * last[0].size.count, *(rate.per_s for _, rate in shown), 1e-9)

    def x(count: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * count / last[0].size.count, 1)

    def y(rate: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * rate / highest, 1)

    return tuple(
        {
            "x": x(row.size.count),
            "y": y(rate.per_s),
            "low": y(rate.low),
            "high": y(min(rate.high, highest)),
            "ideal": y(each * row.size.count),
            "count": row.size.count,
            "text": figure(rate.per_s),
            "short": found.short(row),
        }
        for row, rate in shown
    )


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
