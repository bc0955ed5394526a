"""What machines with GPUs cost to rent (`instances.tsv`), and from how much use on to own."""

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


HOURS_A_YEAR = 8766.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """What the machines cost that hold the GPUs that are asked for."""

    price: float
    power_kw: float
    """What they draw at work, with cooling."""
    price_kwh: float
    years: float
    """For how long they are kept; what they are worth then is not counted."""

    @property
    def hours(self) -> float:
        """All hours of these years."""
        return self.years * HOURS_A_YEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Owning against renting."""

    rent_per_hour: float
    """Of all GPUs."""
    energy_per_hour: float
    own_per_hour: float
    """With energy, at work all the time."""
    hours: float | None
    """Of use from which on owning costs less; None where it never does within the years."""
    utilisation: float | None
    """Which part of the years that is."""


def break_even(owned: Owned, *, rent_per_hour: float) -> BreakEven:
    """Return from how much use on owning costs less: price / (rent - energy) hours."""
    energy = owned.power_kw * owned.price_kwh
    saved = rent_per_hour - energy
    hours = owned.price / saved if saved > 0 else None
    if hours is not None and hours > owned.hours:
        hours = None
    return BreakEven(
        rent_per_hour=rent_per_hour,
        energy_per_hour=energy,
        own_per_hour=owned.price / owned.hours + energy,
        hours=hours,
        utilisation=None if hours is None else hours / owned.hours,
    )
