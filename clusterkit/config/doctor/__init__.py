"""What this machine can and cannot do: one examination for each item of `clusterkit doctor`.

An examination takes a `Machine` and yields items. It runs commands only through the machine's
runner, and imports none of the packages it looks for.
"""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.config.doctor import site, software, tools
from clusterkit.config.doctor.machine import Condition, Examination, Item, Machine

__all__ = ["Condition", "Item", "Machine", "examine"]

EXAMINATIONS: tuple[Examination, ...] = (
    site.configuration,
    software.python,
    software.packages,
    software.training_pythons,
    software.torch_stores,
    tools.gpus,
    tools.slurm,
    tools.ssh,
    tools.containers,
    site.ports,
    site.run_dirs,
)
"""In the order in which a person would ask."""


def examine(machine: Machine) -> Iterator[Item]:
    """Yield every item of every examination."""
    for examination in EXAMINATIONS:
        yield from examination(machine)
