"""Whether to own machines or to rent them: from how much use on owning costs less."""

from __future__ import annotations

from dataclasses import dataclass

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
