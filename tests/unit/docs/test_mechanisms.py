"""The list of what is tested on real jobs has every pair, also those that no test covers."""

from __future__ import annotations

from clusterkit.core.data import read_table
from clusterkit.launch.frameworks import framework_names
from clusterkit.preflight.checks import all_checks
from tests.helpers.paths import TESTS


def test_every_framework_and_every_area_of_checks_is_listed() -> None:
    rows = [(row["mechanism"], row["where"]) for row in read_table(TESTS / "mechanisms.tsv")]
    assert len({*rows}) == len(rows)
    areas = {check.area for check in all_checks()}
    pairs = {(f"framework {n}", w) for n in framework_names() for w in ("slurm", "ssh", "local")}
    pairs |= {(f"check {area}", where) for area in areas for where in ("slurm", "ssh")}
    assert {row for row in rows if row[0].startswith(("framework ", "check "))} == pairs
