"""What machines with GPUs cost to rent; `instances.tsv` has the prices, each with its day."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from clusterkit.core.data import read_table
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.records import row_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A kind of machine that is for rent."""

    name: str
    """Cloud and type: `aws:p5.48xlarge`."""
    gpu: str
    gpus: int
    network: str | None
    usd: float
    """Of the whole machine, for an hour."""
    region: str | None
    as_of: str
    source: str

    @property
    def per_gpu(self) -> float:
        """The price of one GPU for an hour."""
        return self.usd / self.gpus

    def __str__(self) -> str:
        """Return what it costs, where, since when, and who says so."""
        where = f"{self.region}, " if self.region else ""
        return f"{self.name}, {self.usd:.2f} USD an hour ({where}{self.as_of}, {self.source})"


@cache
def instances() -> dict[str, Instance]:
    """Return every row of the table, by name."""
    rows = read_table(__file__, "instances.tsv")
    return {row["name"]: row_of(Instance, row) for row in rows}


def instance_named(text: str) -> Instance:
    """Return the machine of this name; the cloud may be left out.

    Raises:
        UserError: no price of it is known.
    """
    name = text.strip().lower()
    known = instances()
    found = known.get(name) or next(
        (one for key, one in known.items() if key.partition(":")[2] == name), None
    )
    if found is None:
        hint = f"{choices_hint(name, known)}\n  others: --gpu and --price"
        raise UserError(f"no price of {text.strip()!r} is known", hint=hint)
    return found
