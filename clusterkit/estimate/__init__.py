"""What a model needs and how fast it trains: memory, communication, step time, and a strategy.

Pure: nothing here runs a command or asks a GPU, and torch is imported by nobody. The facts and the
formulas with their sources: docs/estimate.md.
"""

from clusterkit.core.data import read_table

_ROWS = read_table(__file__, "facts.tsv")
FACTS = {row["name"]: float(row["value"]) for row in _ROWS}
"""Figures that estimates rest on: `facts.tsv` says of each what it is, and where it is from."""
