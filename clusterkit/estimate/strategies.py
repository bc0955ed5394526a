"""The names of strategies, and what each of them stands for in a `Setup`.

A name is a base, the ranks that divide the model, and what was added: `fsdp`, `zero3-offload`,
`megatron-tp8-pp2`, `fsdp+ac`, `zero3-tp2+lora`, `ddp+powersgd`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from clusterkit.core.data import read_table
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.records import row_of
from clusterkit.estimate.setup import (
    Adapter,
    Checkpointing,
    Compression,
    Library,
    Offload,
    Sharding,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A way to hold a model on several GPUs, with the numbers that its name may hold."""

    name: str
    summary: str
    library: Library
    sharding: Sharding = Sharding.NONE
    offload_optimizer: Offload = Offload.NONE
    offload_params: Offload = Offload.NONE
    adapter: Adapter | None = None
    zeropp: bool = False
    tp: int | None = None
    """Ranks, where a name has them in it."""
    pp: int | None = None
    cp: int | None = None
    dp: int | None = None
    """Follows from the number of GPUs: a given value can only be compared with that."""
    checkpointing: Checkpointing | None = None
    compression: Compression = Compression.NONE

    @property
    def full_name(self) -> str:
        """The name with the given ranks and checkpointing in it."""
        ranks = (("tp", self.tp), ("pp", self.pp), ("cp", self.cp))
        suffix = "".join(f"-{name}{number}" for name, number in ranks if number)
        again = {Checkpointing.FULL: "+ac", Checkpointing.SELECTIVE: "+selective"}
        added = again[self.checkpointing] if self.checkpointing else ""
        added += f"+{self.compression}" if self.compression is not Compression.NONE else ""
        return self.name + suffix + added

    @property
    def offload(self) -> Offload:
        """Where the states are that are not on the GPU."""
        return max(self.offload_optimizer, self.offload_params, key=list(Offload).index)


_ADDED: Mapping[str, Checkpointing | Adapter | Compression] = {
    "checkpointing": Checkpointing.FULL,
    "full": Checkpointing.FULL,
    "ac": Checkpointing.FULL,
    "selective": Checkpointing.SELECTIVE,
    "lora": Adapter(),
    "qlora": Adapter(quantized=True),
    **{kind.value: kind for kind in Compression if kind is not Compression.NONE},
}


_ROWS = tuple(read_table(__file__, "strategies.tsv"))
STRATEGIES = tuple(
    row_of(Strategy, row, adapter=_ADDED.get(row["adapter"]), zeropp=row["zeropp"] == "yes")
    for row in _ROWS
)
"""Simplest first, as far as they can be compared."""

_BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}
_ALIASES = {alias: row["name"] for row in _ROWS for alias in row["aliases"].split()}
_RANKS = re.compile(r"(?:^|[-_x ])(tp|pp|cp|dp)=?(\d+)(?=$|[-_x ])")


def base_named(name: str) -> Strategy:
    """Return the strategy of exactly this name."""
    return _BY_NAME[name]


def strategy_named(text: str) -> Strategy:
    """Return what `text` stands for: `zero3`, `tp8-pp4`, `FSDP FULL_SHARD`, `fsdp+ac`.

    Raises:
        UserError: it is none of the names that are known.
    """
    base, *added = text.strip().lower().replace("zero++", "zeropp").split("+")
    if not base.strip():
        hint = "--strategy fsdp, or one of clusterkit explain strategies"
        raise UserError("--strategy names none", hint=hint)
    ranks: dict[str, Any] = {name: int(number) for name, number in _RANKS.findall(base)}
    if 0 in ranks.values():
        raise UserError(f"no ranks at all in the strategy {text!r}", hint="numbers from 1 on")
    base = _RANKS.sub("", base)
    strategy = _found(base) if base or not ranks else _BY_NAME["megatron"]
    unknown = next((word for word in added if word.strip() not in _ADDED), None)
    if strategy is None:
        raise UserError(f"unknown strategy {text!r}", hint=choices_hint(base, _BY_NAME))
    if unknown is not None:
        message = f"unknown addition {unknown!r} to the strategy {strategy.name}"
        raise UserError(message, hint=choices_hint(unknown, _ADDED))
    for addition in (_ADDED[word.strip()] for word in added):
        ranks[type(addition).__name__.lower()] = addition
    return replace(strategy, **ranks)


def _found(text: str) -> Strategy | None:
    squeezed = re.sub(r"[^a-z0-9]", "", text)
    names = {name.replace("-", ""): name for name in _BY_NAME}
    return _BY_NAME.get(names.get(squeezed) or _ALIASES.get(squeezed, ""))
