"""The names of strategies, and what each of them stands for in a `Setup`.

A name is a base, the ranks that divide the model, and what was added: `fsdp`, `zero3-offload`,
`megatron-tp8-pp2`, `fsdp+ac`, `zero3-tp2+lora`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from clusterkit.core.errors import UserError, choices_hint
from clusterkit.estimate.setup import (
    Adapter,
    Checkpointing,
    Library,
    Offload,
    Setup,
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
    tp: int | None = None
    """Ranks, where a name has them in it."""
    pp: int | None = None
    cp: int | None = None
    dp: int | None = None
    """Follows from the number of GPUs: what was said can only be compared with that."""
    checkpointing: Checkpointing | None = None

    @property
    def full_name(self) -> str:
        """The name with what was said of ranks and checkpointing in it."""
        ranks = (("tp", self.tp), ("pp", self.pp), ("cp", self.cp))
        said = "".join(f"-{name}{number}" for name, number in ranks if number)
        again = {Checkpointing.FULL: "+ac", Checkpointing.SELECTIVE: "+selective"}
        return self.name + said + (again[self.checkpointing] if self.checkpointing else "")

    @property
    def offload(self) -> Offload:
        """Where the states are that are not on the GPU."""
        return max(self.offload_optimizer, self.offload_params, key=list(Offload).index)


_CPU, _NVME = Offload.CPU, Offload.NVME
_DS, _FSDP1, _FSDP2 = Library.DEEPSPEED, Library.FSDP1, Library.FSDP2

STRATEGIES = (
    Strategy(name="single", summary="one GPU", library=Library.DDP),
    Strategy(name="ddp", summary="a whole copy on every GPU", library=Library.DDP),
    Strategy(name="lora", summary="DDP, adapters beside frozen weights", library=Library.DDP,
             adapter=Adapter()),
    Strategy(name="qlora", summary="LoRA with the frozen weights in 4 bits", library=Library.DDP,
             adapter=Adapter(quantized=True)),
    Strategy(name="zero1", summary="DeepSpeed, optimizer states sharded", library=_DS,
             sharding=Sharding.OPTIMIZER),
    Strategy(name="fsdp-shard-grad-op", summary="FSDP2, gathers parameters once a step",
             library=_FSDP2, sharding=Sharding.GRADIENTS),
    Strategy(name="zero2", summary="DeepSpeed, gradients and optimizer states sharded",
             library=_DS, sharding=Sharding.GRADIENTS),
    Strategy(name="fsdp", summary="FSDP2, everything sharded", library=_FSDP2,
             sharding=Sharding.FULL),
    Strategy(name="zero3", summary="DeepSpeed, everything sharded", library=_DS,
             sharding=Sharding.FULL),
    Strategy(name="fsdp-hybrid", summary="FSDP2, sharded within a node, copies across nodes",
             library=_FSDP2, sharding=Sharding.HYBRID),
    Strategy(name="fsdp-no-shard", summary="FSDP1 NO_SHARD, as DDP", library=_FSDP1),
    Strategy(name="fsdp1", summary="FSDP1 FULL_SHARD", library=_FSDP1, sharding=Sharding.FULL),
    Strategy(name="fsdp1-shard-grad-op", summary="FSDP1 SHARD_GRAD_OP", library=_FSDP1,
             sharding=Sharding.GRADIENTS),
    Strategy(name="fsdp1-hybrid", summary="FSDP1 HYBRID_SHARD", library=_FSDP1,
             sharding=Sharding.HYBRID),
    Strategy(name="megatron", summary="TP x PP x DP, distributed optimizer",
             library=Library.MEGATRON, sharding=Sharding.OPTIMIZER),
    Strategy(name="zero1-offload", summary="ZeRO-1, optimizer on the CPU", library=_DS,
             sharding=Sharding.OPTIMIZER, offload_optimizer=_CPU),
    Strategy(name="zero2-offload", summary="ZeRO-2, optimizer on the CPU", library=_DS,
             sharding=Sharding.GRADIENTS, offload_optimizer=_CPU),
    Strategy(name="zero3-offload", summary="ZeRO-3, optimizer and parameters on the CPU",
             library=_DS, sharding=Sharding.FULL, offload_optimizer=_CPU, offload_params=_CPU),
    Strategy(name="zero3-offload-optimizer", summary="ZeRO-3, only the optimizer on the CPU",
             library=_DS, sharding=Sharding.FULL, offload_optimizer=_CPU),
    Strategy(name="fsdp-offload", summary="FSDP2, parameters and optimizer on the CPU",
             library=_FSDP2, sharding=Sharding.FULL, offload_optimizer=_CPU, offload_params=_CPU),
    Strategy(name="fsdp1-offload", summary="FSDP1, parameters and optimizer on the CPU",
             library=_FSDP1, sharding=Sharding.FULL, offload_optimizer=_CPU, offload_params=_CPU),
    Strategy(name="zero3-nvme", summary="ZeRO-3, optimizer and parameters on disks", library=_DS,
             sharding=Sharding.FULL, offload_optimizer=_NVME, offload_params=_NVME),
)  # fmt: skip
"""Simplest first, as far as they can be compared."""

_BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}

_ALIASES = {
    "none": "single", "1gpu": "single", "singlegpu": "single",
    "dataparallel": "ddp", "dp": "ddp", "distributeddataparallel": "ddp",
    "zero0": "ddp",
    "zerostage1": "zero1", "zero-1": "zero1", "z1": "zero1", "deepspeedzero1": "zero1",
    "zerostage2": "zero2", "z2": "zero2", "deepspeedzero2": "zero2",
    "zerostage3": "zero3", "z3": "zero3", "deepspeedzero3": "zero3", "deepspeed": "zero3",
    "fsdp2": "fsdp", "fullshard": "fsdp", "fsdpfullshard": "fsdp", "fsdp2fullshard": "fsdp",
    "shardgradop": "fsdp-shard-grad-op", "fsdp2shardgradop": "fsdp-shard-grad-op",
    "hybridshard": "fsdp-hybrid", "fsdphybridshard": "fsdp-hybrid", "hsdp": "fsdp-hybrid",
    "fsdp2hybrid": "fsdp-hybrid", "fsdp2hybridshard": "fsdp-hybrid", "hybrid": "fsdp-hybrid",
    "noshard": "fsdp-no-shard", "fsdp1noshard": "fsdp-no-shard",
    "fsdp1fullshard": "fsdp1", "fsdp1hybridshard": "fsdp1-hybrid",
    "fsdp2offload": "fsdp-offload",
    "zero2offloadcpu": "zero2-offload", "zero2cpuoffload": "zero2-offload",
    "zero3offloadcpu": "zero3-offload", "zero3cpuoffload": "zero3-offload",
    "zero3offloadnvme": "zero3-nvme", "zero3nvmeoffload": "zero3-nvme",
    "tppp": "megatron", "tpppdp": "megatron", "dptppp": "megatron", "tpdp": "megatron",
    "zerooffload": "zero2-offload", "zero2cpu": "zero2-offload", "zero3cpu": "zero3-offload",
    "zeroinfinity": "zero3-nvme", "zero3infinity": "zero3-nvme", "zeroinfinitynvme": "zero3-nvme",
    "3d": "megatron", "megatronlm": "megatron", "tp": "megatron", "pp": "megatron",
    "tensorparallel": "megatron", "pipeline": "megatron",
}  # fmt: skip
"""What people write instead, in small letters and digits."""

_RANKS = re.compile(r"(?:^|[-_x ])(tp|pp|cp|dp)=?(\d+)(?=$|[-_x ])")
_ADDED: Mapping[str, Checkpointing | Adapter] = {
    "checkpointing": Checkpointing.FULL,
    "full": Checkpointing.FULL,
    "ac": Checkpointing.FULL,
    "selective": Checkpointing.SELECTIVE,
    "lora": Adapter(),
    "qlora": Adapter(quantized=True),
}


def base_named(name: str) -> Strategy:
    """Return the strategy of exactly this name."""
    return _BY_NAME[name]


def strategy_named(text: str) -> Strategy:
    """Return what `text` stands for: `zero3`, `tp8-pp4`, `FSDP FULL_SHARD`, `fsdp+ac`.

    Raises:
        UserError: it is none of the names that are known.
    """
    base, *added = text.strip().lower().split("+")
    if not base.strip():
        raise UserError(
            "--strategy names none", hint="--strategy fsdp, or one of clusterkit explain strategies"
        )
    ranks: dict[str, Any] = {name: int(number) for name, number in _RANKS.findall(base)}
    if 0 in ranks.values():
        raise UserError(f"no ranks at all in the strategy {text!r}", hint="numbers from 1 on")
    base = _RANKS.sub("", base)
    strategy = _found(base) if base or not ranks else _BY_NAME["megatron"]
    unknown = next((word for word in added if word.strip() not in _ADDED), None)
    if strategy is None:
        raise UserError(f"unknown strategy {text!r}", hint=choices_hint(base, _BY_NAME))
    if unknown is not None:
        raise UserError(
            f"unknown addition {unknown!r} to the strategy {strategy.name}",
            hint=choices_hint(unknown, _ADDED),
        )
    checkpointing, adapter = None, strategy.adapter
    for word in added:
        addition = _ADDED[word.strip()]
        if isinstance(addition, Adapter):
            adapter = addition
        else:
            checkpointing = addition
    return replace(strategy, **ranks, checkpointing=checkpointing, adapter=adapter)


def _found(text: str) -> Strategy | None:
    squeezed = re.sub(r"[^a-z0-9]", "", text)
    for name, strategy in _BY_NAME.items():
        if squeezed == name.replace("-", ""):
            return strategy
    return _BY_NAME.get(_ALIASES.get(squeezed, ""))


def name_of(setup: Setup) -> str:
    """Return the name of the strategy of a setup: base, and the ranks that divide the model."""
    wanted = (setup.library, setup.sharding, setup.offload_optimizer, setup.offload_params)
    alike = [
        strategy.name
        for strategy in STRATEGIES
        if (strategy.library, strategy.sharding, strategy.offload_optimizer,
            strategy.offload_params) == wanted
    ]  # fmt: skip
    base = alike[0] if alike else f"{setup.library}-{setup.sharding}"
    if setup.library is Library.MEGATRON:
        base = "megatron"
    elif base == "single":
        base = _plain_name(setup)
    ranks = (("tp", setup.tp), ("pp", setup.pp), ("cp", setup.cp))
    return base + "".join(f"-{name}{number}" for name, number in ranks if number > 1)


def _plain_name(setup: Setup) -> str:
    if setup.adapter is not None:
        return "qlora" if setup.adapter.quantized else "lora"
    return "ddp" if setup.gpus > 1 else "single"
