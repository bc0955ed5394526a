"""Figures that estimates rest on: `facts.tsv` says of each what it is, and where it is from."""

from pathlib import Path

from clusterkit.core.data import read_table

_ROWS = read_table(Path(__file__).with_name("facts.tsv"))
FACTS = {row["name"]: float(row["value"]) for row in _ROWS}
