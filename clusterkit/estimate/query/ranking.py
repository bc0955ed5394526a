"""What the same training takes on several kinds of rented machines."""

from __future__ import annotations

from dataclasses import dataclass, replace

from clusterkit.core.errors import UserError
from clusterkit.estimate.machines.instances import Instance, instance_named
from clusterkit.estimate.query.answer import answer
from clusterkit.estimate.query.options import EstimateOptions
from clusterkit.estimate.speed.step_time import Bill, bill_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Rented:
    """One kind of machine."""

    instance: Instance
    strategy: str | None
    """The one to take there; None where none fits."""
    bill: Bill | None

    @property
    def usd(self) -> float:
        """What is likely to be paid; without end where nothing fits."""
        price = self.bill.price if self.bill is not None else None
        return float("inf") if price is None else price.likely


def ranked(options: EstimateOptions) -> tuple[Rented, ...]:
    """Return what so many tokens take on each machine of `on`, the cheapest first.

    Raises:
        UserError: as `answer`; no tokens, or a price that would be that of all.
    """
    if options.tokens is None:
        raise UserError("machines are ranked by what a number of tokens costs", hint="--tokens 2T")
    if options.price is not None or options.own is not None:
        raise UserError("--price and --own are for one machine", hint="--on with one of them")
    found = [instance_named(name) for name in (options.on or "").split(",")]
    return tuple(sorted((_on(one, options) for one in found), key=lambda row: row.usd))


def _on(instance: Instance, options: EstimateOptions) -> Rented:
    found = answer(replace(options, on=instance.name))
    best, tokens = found.chosen, found.request.tokens
    if best is None or tokens is None:
        return Rented(instance=instance, strategy=None, bill=None)
    bill = bill_of(best.setup, best.speed, tokens, price=found.request.price)
    return Rented(instance=instance, strategy=best.name, bill=bill)
