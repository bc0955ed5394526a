"""What is asked about renting machines, and about owning them instead."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from clusterkit.core.errors import Problem, UserError
from clusterkit.estimate.machines.gpus import gpu_named
from clusterkit.estimate.machines.instances import Instance
from clusterkit.estimate.machines.owning import Owned
from clusterkit.estimate.query.options import EstimateOptions

_FLAGS = {"own": "--own", "power": "--power", "price_kwh": "--price-kwh", "years": "--years"}
_EXAMPLE = "--own 300000 --power 10 --price-kwh 0.15 --years 4"
_LEAST_YEARS, _MOST = 0.1, 1e12


def on_instance(options: EstimateOptions, instance: Instance) -> EstimateOptions:
    """Return the options with what a rented machine has, below what is given.

    Raises:
        UserError: another GPU is asked for than it has.
    """
    if options.gpu is not None and gpu_named(options.gpu) != gpu_named(instance.gpu):
        raise UserError(
            f"--gpu {options.gpu}, and {instance.name} has {instance.gpu}", hint="leave --gpu out"
        )
    return replace(
        options,
        gpu=instance.gpu,
        gpus=instance.gpus if options.gpus is None else options.gpus,
        gpus_per_node=options.gpus_per_node or instance.gpus,
        interconnect=options.interconnect or instance.network,
        price=instance.per_gpu if options.price is None else options.price,
    )


def problems_of_owning(options: EstimateOptions) -> Iterator[Problem]:
    """Yield what is wrong with what is asked about owning machines."""
    given = {flag: getattr(options, name) for name, flag in _FLAGS.items()}
    if all(number is None for number in given.values()):
        return
    lacking = [flag for flag, number in given.items() if number is None]
    if lacking:
        yield Problem(message=f"to own machines wants {', '.join(lacking)} as well", hint=_EXAMPLE)
    for flag, number in given.items():
        least = _LEAST_YEARS if flag == "--years" else 0.0
        if number is not None and not least <= number <= _MOST:  # nor is it NaN
            yield Problem(message=f"{flag} is {number}", hint=_EXAMPLE)
    if options.price is None:
        yield Problem(
            message="--own is held against the price of renting",
            hint="--on aws:p5.48xlarge, or --price 2.5 for one GPU and hour",
        )


def owned_of(options: EstimateOptions) -> Owned | None:
    """Return what machines of one's own cost, where that is asked about."""
    numbers = [getattr(options, name) for name in _FLAGS]
    if any(number is None or not math.isfinite(number) for number in numbers):
        return None
    price, power, price_kwh, years = numbers
    return Owned(price=price, power_kw=power, price_kwh=price_kwh, years=years)
