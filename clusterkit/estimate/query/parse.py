"""Turn the words of a question into what is asked for, or say all that is wrong with them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from clusterkit.core.errors import Problem, UserError, choices_hint
from clusterkit.estimate.batch import solve_batch
from clusterkit.estimate.machines.gpus import Gpu, gpu_named
from clusterkit.estimate.machines.interconnects import interconnect_named, network_of
from clusterkit.estimate.models.named import model_named, model_of_config, model_of_params
from clusterkit.estimate.query.arguments import EstimateWords
from clusterkit.estimate.refusals import absurd
from clusterkit.estimate.request import Wish
from clusterkit.estimate.setup import Adapter, Checkpointing, Loss, Offload, Optimizer, Precision
from clusterkit.estimate.strategies import Chosen, strategy_named

if TYPE_CHECKING:
    from enum import StrEnum

    from clusterkit.core.model import ClusterSpec
    from clusterkit.estimate.shapes import ModelShape

_SEQ = 4096
_PER_NODE = 8
_FILLED = 4
"""Micro batches for each stage of a pipeline, where nothing is said of the batch."""
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_AMOUNT = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:e\+?[0-9]{1,2})?) *([kmbt]?)")
_MOST_RAM = 100_000
_POSITIVE = (
    "gpus", "gpus_per_node", "seq", "micro_batch", "accumulation", "global_batch",
    "tp", "pp", "vpp", "cp", "ep", "lora_rank",
)  # fmt: skip

T = TypeVar("T")
E = TypeVar("E", bound="StrEnum")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked, and what had to be assumed for it."""

    wish: Wish
    chosen: Chosen | None
    assumed: tuple[str, ...]
    margin: float
    host_memory: float | None
    """RAM of a node in bytes, if that was said."""
    tokens: float | None
    price: float | None


class _Reader:
    """Reads flag by flag, and goes on after a wrong one to find the next."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def take(self, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except UserError as error:
            self.problems.extend(error.problems)
            return otherwise

    def choice(self, flag: str, text: str | None, kind: type[E]) -> E | None:
        if text is None:
            return None
        try:
            return kind(text.strip().lower().replace("_", "-"))
        except ValueError:
            names = [str(member) for member in kind]
            self.refuse(f"unknown {flag} {text!r}", choices_hint(text, names))
            return None

    def refuse(self, message: str, hint: str) -> None:
        self.problems.append(Problem(message=message, hint=hint))

    def check(self) -> None:
        if self.problems:
            raise UserError(problems=tuple(dict.fromkeys(self.problems)))


def read_words(words: EstimateWords, *, cluster: ClusterSpec | None = None) -> Asked:
    """Return what is asked; a cluster may know its GPUs and how many a node has.

    Raises:
        UserError: flags are missing or make no sense; all of them at once.
    """
    if cluster is not None:
        words = replace(
            words,
            gpu=words.gpu or cluster.gpu_type,
            gpus_per_node=words.gpus_per_node or cluster.gpus_per_node,
        )
    reader = _Reader()
    _refuse_numbers(words, reader)
    gpu = reader.take(lambda: _gpu(words), None)
    chosen = reader.take(lambda: _strategy(words), None)
    training = _training(words, reader)
    margin = reader.take(lambda: _margin(words.margin), 0.0)
    tokens = reader.take(lambda: _tokens(words.tokens), None)
    if words.gpus is None:
        reader.refuse("how many GPUs?", "--gpus 8")
    if reader.problems and _is_module(words.model):
        reader.check()  # to trace a module takes seconds: not before the rest is right
    model = reader.take(lambda: _model(words), None)
    reader.check()
    if model is None or gpu is None:  # refused above
        raise UserError("nothing to estimate")
    if chosen is not None:
        chosen = _completed(chosen, words, training["offload"])
    wish = Wish(
        model=model,
        gpu=gpu,
        gpus_per_node=words.gpus_per_node or _PER_NODE,
        seq=words.seq or min(_SEQ, model.max_seq or model.learned_positions or _SEQ),
        adapter=_adapter(words, chosen),
        **_ranks_and_batch(words, chosen),
        **training,
    )
    if chosen is not None and chosen.checkpointing is not None:
        wish = replace(wish, checkpointing=wish.checkpointing or chosen.checkpointing)
    return Asked(
        wish=wish,
        chosen=chosen,
        assumed=tuple(_assumed(words, wish)),
        margin=margin,
        host_memory=None if words.host_memory is None else words.host_memory * 1e9,
        tokens=tokens,
        price=words.price,
    )


def _training(words: EstimateWords, reader: _Reader) -> dict[str, Any]:
    """Return the fields of a wish that say how training is done."""
    network = words.interconnect
    if network is not None:
        reader.take(lambda: interconnect_named(network), None)
    return {
        "precision": reader.choice("--precision", words.precision, Precision),
        "optimizer": reader.choice("--optimizer", words.optimizer, Optimizer) or Optimizer.ADAMW,
        "checkpointing": reader.choice("--checkpointing", words.checkpointing, Checkpointing),
        "loss": reader.choice("--loss", words.loss, Loss) or Loss.EAGER,
        "offload": reader.choice("--offload", words.offload, Offload),
        "flash_attention": not words.no_flash,
        "compiled": words.compiled,
        "no_sync": words.no_sync,
        "interconnect": network,
    }


def _ranks_and_batch(words: EstimateWords, chosen: Chosen | None) -> dict[str, Any]:
    """Return the fields of a wish that count: ranks, and the sequences of a step."""
    gpus = words.gpus or 1
    tp = words.tp or (chosen.tp if chosen else None)
    pp = words.pp or (chosen.pp if chosen else None)
    cp = words.cp or (chosen.cp if chosen else None) or 1
    steps = words.accumulation
    if steps is None and words.global_batch is None and pp is not None and pp > 1:
        steps = _FILLED * pp
    if (words.vpp or 1) > 1 and (pp or 1) == 1:
        raise UserError(
            f"--vpp {words.vpp} divides the stages of a pipeline, and there is none",
            hint="--pp 2, or another number of stages",
        )
    batch = solve_batch(
        ranks=max(gpus // ((tp or 1) * (pp or 1) * cp), 1),
        micro_batch=words.micro_batch,
        accumulation=steps,
        global_batch=words.global_batch,
    )
    return {
        "gpus": gpus,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "vpp": words.vpp or 1,
        "ep": words.ep or 1,
        "micro_batch": batch.micro_batch,
        "global_batch": batch.global_batch,
    }


def _refuse_numbers(words: EstimateWords, reader: _Reader) -> None:
    for name in _POSITIVE:
        number = getattr(words, name)
        problem = None if number is None else absurd(name, number)
        if problem is not None:
            reader.problems.append(problem)
    if words.host_memory is not None and not 1 <= words.host_memory <= _MOST_RAM:
        reader.refuse(
            f"--host-memory is {words.host_memory:g}",
            f"the RAM of a node in GB, 1 to {_MOST_RAM:,}: --host-memory 512",
        )
    if words.price is not None and not (words.price >= 0 and math.isfinite(words.price)):
        reader.refuse(f"--price is {words.price}", "the price of one GPU for an hour, as 2.5")
    if words.price is not None and words.tokens is None:
        reader.refuse("--price is for a number of tokens", "--tokens 2T")


def _model(words: EstimateWords) -> ModelShape:
    text = None if words.model is None else str(words.model)
    empty = text is not None and not text.strip()
    if empty or (text is None) == (words.params is None):
        wrong = "which model?" if empty or text is None else "--model and --params are both given"
        raise UserError(wrong, hint="--model llama-3.1-8b, --model config.json, or --params 7B")
    if text is None:
        return model_of_params(str(words.params or ""))
    if _is_module(text):
        from clusterkit.estimate.models.module import model_of_module  # noqa: PLC0415 - rarely

        return model_of_module(text, **({"seq": words.seq} if words.seq else {})).shape
    path = Path(text).expanduser()
    if path.exists() or path.suffix == ".json":
        return model_of_config(path)
    return model_named(text)


def _strategy(words: EstimateWords) -> Chosen | None:
    return None if words.strategy is None else strategy_named(words.strategy)


def _is_module(model: str | os.PathLike[str] | None) -> bool:
    """Tell whether a model is named by its import path."""
    text = "" if model is None else str(model)
    return ":" in text and not Path(text).expanduser().exists()


def _gpu(words: EstimateWords) -> Gpu:
    if words.gpu is None:
        raise UserError(
            "which GPU?", hint="--gpu h100, a100-80, l40s, mi300x ...: clusterkit explain gpus"
        )
    return gpu_named(words.gpu)


def _margin(part: str | float | None) -> float:
    if part is None:
        return 0.08
    text = str(part)
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = math.nan
    if not 0 <= number < 1:
        raise UserError(f"--margin {text} is no part of a GPU", hint="--margin 0.08, or 8%")
    return number


def _tokens(number_of: str | float | None) -> float | None:
    if number_of is None:
        return None
    text = str(number_of)
    match = _AMOUNT.fullmatch(text.strip().lower())
    number = float(re.sub("[_,]", "", match[1])) * _SCALES[match[2]] if match else 0.0
    if number <= 0:
        raise UserError(f"--tokens {text} is no number of tokens", hint="--tokens 2T, or 300B")
    return number


def _completed(chosen: Chosen, words: EstimateWords, offload: Offload | None) -> Chosen:
    """Return the chosen strategy with what `--offload` adds to it, once they agree.

    Raises:
        UserError: name and flags contradict each other.
    """
    for name in ("tp", "pp", "cp"):
        said, flag = getattr(chosen, name), getattr(words, name)
        if None not in {said, flag} and said != flag:
            raise UserError(
                f"--strategy {words.strategy} and --{name} {flag} contradict each other",
                hint=f"leave --{name} out",
            )
    ranks = [getattr(chosen, name) or getattr(words, name) or 1 for name in ("tp", "pp", "cp")]
    needed = math.prod(ranks) * (chosen.dp or 0)
    if chosen.dp is not None and words.gpus != needed:
        raise UserError(
            f"--strategy {words.strategy} is for {needed} GPUs, not for {words.gpus}",
            hint=f"--gpus {needed}, or a name without dp",
        )
    strategy = chosen.strategy
    if strategy.name == "single" and words.gpus != 1:
        raise UserError(
            f"the strategy single is for one GPU, not for {words.gpus}",
            hint="--gpus 1, or --strategy ddp",
        )
    if offload is None or offload is strategy.offload:
        return chosen
    if strategy.offload is not Offload.NONE:
        raise UserError(
            f"--strategy {strategy.name} and --offload {offload} contradict each other",
            hint="leave --offload out",
        )
    base = {"fsdp-shard-grad-op": "fsdp"}.get(strategy.name, strategy.name)
    suffix = "nvme" if offload is Offload.NVME else "offload"
    try:
        offloaded = strategy_named(f"{base}-{suffix}").strategy
    except UserError:
        raise UserError(
            f"{strategy.name} offloads nothing to {offload}",
            hint="--strategy zero2-offload, zero3-offload, fsdp-offload or zero3-nvme",
        ) from None
    return replace(chosen, strategy=offloaded)


def _adapter(words: EstimateWords, chosen: Chosen | None) -> Adapter | None:
    named = chosen.adapter if chosen else None
    if words.lora_rank is None and not words.qlora:
        return named
    base = named or Adapter()
    return replace(base, rank=words.lora_rank or base.rank, quantized=base.quantized or words.qlora)


def _assumed(words: EstimateWords, wish: Wish) -> Iterator[str]:
    yield from wish.model.assumed
    if words.seq is None:
        yield f"sequences of {wish.seq} tokens (--seq)"
    if words.micro_batch is None and words.accumulation is None:
        yield f"micro batch {wish.micro_batch} (--micro-batch)"
        if words.global_batch is None and wish.pp is not None and wish.pp > 1:
            yield f"{_FILLED * wish.pp} of them a step (--accumulation)"
    if words.gpus_per_node is None and wish.gpus > _PER_NODE:
        yield f"{_PER_NODE} GPUs in each node (--gpus-per-node)"
    if words.precision is None:
        kind = "bf16" if wish.gpu.has_bf16 else "fp16"
        yield f"{kind} as usual with each library (--precision)"
    if words.optimizer is None:
        yield "AdamW (--optimizer)"
    if wish.gpus > wish.gpus_per_node and words.interconnect is None:
        yield f"{network_of(wish.gpu).name} between nodes (--interconnect)"
