"""`clusterkit estimate --calibrate`: learn from a measured step, for all estimates that follow."""

from __future__ import annotations

import os
from pathlib import Path

from clusterkit.cli.estimate.report import gb, rounded
from clusterkit.cli.frame import console
from clusterkit.config.load import load_settings
from clusterkit.core.text import table, wrapped
from clusterkit.estimate.calibrate import calibrate
from clusterkit.estimate.factors import (
    Calibration,
    calibration_file,
    load_calibration,
    save_calibration,
)
from clusterkit.estimate.measurement import Measurement, read_measurement
from clusterkit.estimate.memory.phases import memory_of
from clusterkit.estimate.query.answer import LOCAL
from clusterkit.estimate.speed.step_time import speed_of


def learn(path: Path, named: str | None, *, as_json: bool) -> None:
    """Read a measurement, keep what it says of a cluster, and say how far the estimate was off."""
    if named is not None:
        load_settings().cluster(named)  # a wrong name is to be told of
    cluster = named or LOCAL
    measurement = read_measurement(path)
    place = calibration_file(cluster, os.environ)
    found = calibrate(measurement, before=load_calibration(place))
    save_calibration(place, found)
    if as_json:
        console.json_document({"cluster": cluster, "file": place, "calibration": found})
        return
    console.say(console.bold(f"Measured: {measurement.subject}"))
    console.say(*_compared(measurement, found))
    if found.note:
        console.note(found.note)
    gpu = measurement.setup.gpu.name
    where = f"on the cluster {cluster} start from this now; it is kept in {place}"
    console.say(*wrapped(f"Estimates of {gpu} {where}"))


def _compared(measurement: Measurement, found: Calibration) -> list[str]:
    setup = measurement.setup
    before, after = memory_of(setup), memory_of(setup, calibration=found)
    rows: list[tuple[str, ...]] = [("", "measured", "estimated", "from now on")]
    for name, measured, first, then in (
        ("allocated", measurement.allocated_bytes, before.allocated, after.allocated),
        ("reserved", measurement.reserved_bytes, before.reserved.likely, after.reserved.likely),
    ):
        if measured is not None:
            rows.append((name, *map(gb, (measured, first, then)), "  GB"))
    if measurement.step_s is not None:
        steps = (speed_of(setup, calibration=one).step_s.likely for one in (None, found))
        rows.append(("step", *map(rounded, (measurement.step_s, *steps)), "  s"))
    lines = [f"  {line}" for line in table(rows, "<>>>", gap=0, widths=(12, 10, 12, 13))]
    for where, scale in (
        ("within a node", found.intra_busbw_scale),
        ("between nodes", found.inter_busbw_scale),
    ):
        if scale != 1.0:
            lines.append(f"  all-reduce {where}: {scale:.2f} of the bandwidth that was assumed")
    return lines
