"""From the options of a question to its answer, or to all that is wrong with them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from clusterkit.core.errors import Problem, UserError, choices_hint
from clusterkit.core.model import ClusterSpec
from clusterkit.estimate.advice.recommend import Answer, answer_of
from clusterkit.estimate.factors import Calibration, calibration_file, load_calibration
from clusterkit.estimate.machines.gpus import gpu_named
from clusterkit.estimate.machines.instances import instance_named
from clusterkit.estimate.machines.interconnects import interconnect_named, network_of
from clusterkit.estimate.machines.power import under_limit
from clusterkit.estimate.models.model_config import model_of_config
from clusterkit.estimate.models.named import amount, model_named, model_of_params
from clusterkit.estimate.query.options import EstimateOptions
from clusterkit.estimate.refusals import LIMITS, absurd
from clusterkit.estimate.request import Request, solve_batch
from clusterkit.estimate.setup import Adapter, Checkpointing, Loss, Offload, Optimizer, Precision
from clusterkit.estimate.strategies import Strategy, strategy_named

if TYPE_CHECKING:
    from enum import StrEnum

    from clusterkit.estimate.shapes import ModelShape
from dataclasses import dataclass

from clusterkit.estimate.machines.instances import Instance, Owned
from clusterkit.estimate.speed.step_time import Bill, bill_of

_SEQ = 4096
PER_NODE = 8
_FILLED = 4
"""Micro batches for each stage of a pipeline, where nothing is said of the batch."""
_MOST_RAM = 100_000

T = TypeVar("T")
E = TypeVar("E", bound="StrEnum")


class _Reader:
    """Reads flag by flag, and continues after a wrong one to find the next."""

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


def read_options(
    options: EstimateOptions,
    *,
    cluster: ClusterSpec | None = None,
    model: ModelShape | None = None,
) -> Request:
    """Return what is asked; a cluster may know its GPUs and how many a node has.

    Args:
        options: The question.
        cluster: The one that it names.
        model: What the options call by its name, where that was read before.

    Raises:
        UserError: options are missing or make no sense; all of them at once.
    """
    if cluster is not None:
        options = replace(
            options,
            gpu=options.gpu or cluster.gpu_type,
            gpus_per_node=options.gpus_per_node or cluster.gpus_per_node,
        )
    instance = None if options.on is None else instance_named(options.on)
    if instance is not None:
        options = on_instance(options, instance)
    reader = _Reader()
    _refuse_numbers(options, reader)
    gpu = None
    if options.gpu is None:
        hint = "--gpu h100, a100-80, l40s, mi300x ...: clusterkit explain gpus"
        reader.refuse("which GPU?", hint)
    else:
        gpu = reader.take(partial(gpu_named, options.gpu), None)
    if gpu is not None and options.power_limit is not None:
        gpu = reader.take(partial(under_limit, gpu, options.power_limit), None)
    named = options.strategy
    strategy = reader.take(lambda: None if named is None else strategy_named(named), None)
    training = _training(options, reader)
    margin = reader.take(lambda: _margin(options.margin), 0.0)
    tokens = reader.take(lambda: _tokens(options.tokens), None)
    if options.gpus is None:
        reader.refuse("how many GPUs?", "--gpus 8")
    if reader.problems and _is_module(options.model):
        reader.check()  # to trace a module takes seconds: not before the rest is right
    model = model or reader.take(lambda: _model(options), None)
    reader.check()
    if model is None or gpu is None:  # refused above
        raise UserError("nothing to estimate")
    if strategy is not None:
        strategy = _completed(strategy, options, training["offload"])
        training["checkpointing"] = training["checkpointing"] or strategy.checkpointing
    request = Request(
        model=model,
        gpu=gpu,
        gpus_per_node=options.gpus_per_node or PER_NODE,
        seq=options.seq or min(_SEQ, model.max_seq or model.learned_positions or _SEQ),
        strategy=strategy,
        adapter=_adapter(options, strategy),
        margin=margin,
        host_memory=None if options.host_memory is None else options.host_memory * 1e9,
        tokens=tokens,
        price=options.price,
        instance=instance,
        owned=owned_of(options),
        explain=options.explain,
        scale=options.scale,
        **_ranks_and_batch(options, strategy),
        **training,
    )
    return replace(request, assumed=tuple(_assumed(options, request)))


def _training(options: EstimateOptions, reader: _Reader) -> dict[str, Any]:
    """Return the fields of a request that say how training is done."""
    network = options.interconnect
    if network is not None:
        reader.take(lambda: interconnect_named(network), None)
    return {
        "precision": reader.choice("--precision", options.precision, Precision),
        "optimizer": reader.choice("--optimizer", options.optimizer, Optimizer) or Optimizer.ADAMW,
        "checkpointing": reader.choice("--checkpointing", options.checkpointing, Checkpointing),
        "loss": reader.choice("--loss", options.loss, Loss) or Loss.EAGER,
        "offload": reader.choice("--offload", options.offload, Offload),
        "flash_attention": not options.no_flash,
        "compiled": options.compiled,
        "no_sync": options.no_sync,
        "interconnect": network,
    }


def _ranks_and_batch(options: EstimateOptions, strategy: Strategy | None) -> dict[str, Any]:
    """Return the fields of a request that count: ranks, and the sequences of a step."""
    gpus = options.gpus or 1
    tp = options.tp or (strategy.tp if strategy else None)
    pp = options.pp or (strategy.pp if strategy else None)
    cp = options.cp or (strategy.cp if strategy else None) or 1
    steps = options.accumulation
    if steps is None and options.global_batch is None and pp is not None and pp > 1:
        steps = _FILLED * pp
    if (options.vpp or 1) > 1 and (pp or 1) == 1:
        raise UserError(
            f"--vpp {options.vpp} divides the stages of a pipeline, and there is none",
            hint="--pp 2, or another number of stages",
        )
    batch = solve_batch(
        ranks=max(gpus // ((tp or 1) * (pp or 1) * cp), 1),
        micro_batch=options.micro_batch,
        accumulation=steps,
        global_batch=options.global_batch,
    )
    ranks = {"tp": tp, "pp": pp, "cp": cp, "vpp": options.vpp or 1, "ep": options.ep or 1}
    sizes = {"micro_batch": batch.micro_batch, "global_batch": batch.global_batch}
    return {"gpus": gpus, **ranks, **sizes}


def _refuse_numbers(options: EstimateOptions, reader: _Reader) -> None:
    for name in LIMITS:
        number = getattr(options, name)
        problem = None if number is None else absurd(name, number)
        reader.problems += [problem] if problem else []
    if options.host_memory is not None and not 1 <= options.host_memory <= _MOST_RAM:
        reader.refuse(
            f"--host-memory is {options.host_memory:g}",
            f"the RAM of a node in GB, 1 to {_MOST_RAM:,}: --host-memory 512",
        )
    if options.price is not None and not (options.price >= 0 and math.isfinite(options.price)):
        reader.refuse(f"--price is {options.price}", "the price of one GPU for an hour, as 2.5")
    asked = options.tokens is not None or options.own is not None
    if options.price is not None and options.on is None and not asked:
        reader.refuse("--price is for a number of tokens", "--tokens 2T")
    reader.problems += problems_of_owning(options)


def _model(options: EstimateOptions) -> ModelShape:
    text = None if options.model is None else str(options.model)
    empty = text is not None and not text.strip()
    if empty or (text is None) == (options.params is None):
        wrong = "which model?" if empty or text is None else "--model and --params are both given"
        raise UserError(wrong, hint="--model llama-3.1-8b, --model config.json, or --params 7B")
    if text is None:
        return model_of_params(str(options.params or ""))
    if _is_module(text):
        from clusterkit.estimate.models.module import model_of_module  # noqa: PLC0415 - rarely

        return model_of_module(text, **({"seq": options.seq} if options.seq else {}))
    path = Path(text).expanduser()
    if path.exists() or path.suffix == ".json":
        return model_of_config(path)
    return model_named(text)


def _is_module(model: str | os.PathLike[str] | None) -> bool:
    """Tell whether a model is named by its import path, and not by a tag, as in `llama3.1:8b`."""
    text = "" if model is None else str(model)
    path, colon, factory = text.rpartition(":")
    named = bool(colon) and not (path and factory[:1].isdigit())
    return named and not Path(text).expanduser().exists()


def _margin(part: str | float | None) -> float:
    if part is None:
        return 0.08
    text = str(part)
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = math.nan
    if not 0 <= number < 1:
        raise UserError(f"--margin {text} is not a part of a GPU", hint="--margin 0.08, or 8%")
    return number


def _tokens(number_of: str | float | None) -> float | None:
    if number_of is None:
        return None
    text = str(number_of)
    number = amount(text)
    if not number:
        raise UserError(f"--tokens {text} is not a number of tokens", hint="--tokens 2T, or 300B")
    return number


def _completed(strategy: Strategy, options: EstimateOptions, offload: Offload | None) -> Strategy:
    """Return the chosen strategy with what `--offload` adds to it, once they agree.

    Raises:
        UserError: name and flags contradict each other.
    """
    needed = strategy.dp or 0
    for name in ("tp", "pp", "cp"):
        chosen, flag = getattr(strategy, name), getattr(options, name)
        needed *= chosen or flag or 1
        if None not in {chosen, flag} and chosen != flag:
            message = f"--strategy {options.strategy} and --{name} {flag} contradict each other"
            raise UserError(message, hint=f"leave --{name} out")
    if strategy.dp is not None and options.gpus != needed:
        message = f"--strategy {options.strategy} is for {needed} GPUs, not for {options.gpus}"
        raise UserError(message, hint=f"--gpus {needed}, or a name without dp")
    if strategy.name == "single" and options.gpus != 1:
        message = f"the strategy single is for one GPU, not for {options.gpus}"
        raise UserError(message, hint="--gpus 1, or --strategy ddp")
    if offload is None or offload is strategy.offload:
        return strategy
    if strategy.offload is not Offload.NONE:
        message = f"--strategy {strategy.name} and --offload {offload} contradict each other"
        raise UserError(message, hint="leave --offload out")
    base = {"fsdp-shard-grad-op": "fsdp"}.get(strategy.name, strategy.name)
    suffix = "nvme" if offload is Offload.NVME else "offload"
    try:
        offloaded = strategy_named(f"{base}-{suffix}")
    except UserError:
        hint = "--strategy zero2-offload, zero3-offload, fsdp-offload or zero3-nvme"
        raise UserError(f"{strategy.name} offloads nothing to {offload}", hint=hint) from None
    places = {name: getattr(offloaded, name) for name in ("offload_optimizer", "offload_params")}
    return replace(strategy, name=offloaded.name, **places)


def _adapter(options: EstimateOptions, strategy: Strategy | None) -> Adapter | None:
    named = strategy.adapter if strategy else None
    if options.lora_rank is None and not options.qlora:
        return named
    base = named or Adapter()
    return replace(
        base, rank=options.lora_rank or base.rank, quantized=base.quantized or options.qlora
    )


def _assumed(options: EstimateOptions, request: Request) -> Iterator[str]:
    yield from request.model.assumed
    if options.seq is None:
        yield f"sequences of {request.seq} tokens (--seq)"
    if options.micro_batch is None and options.accumulation is None:
        yield f"micro batch {request.micro_batch} (--micro-batch)"
        if options.global_batch is None and request.pp is not None and request.pp > 1:
            yield f"{_FILLED * request.pp} of them per step (--accumulation)"
    if options.gpus_per_node is None and request.gpus > PER_NODE:
        yield f"{PER_NODE} GPUs in each node (--gpus-per-node)"
    if options.precision is None:
        kind = "bf16" if request.gpu.has_bf16 else "fp16"
        yield f"{kind} as usual with each library (--precision)"
    if options.optimizer is None:
        yield "AdamW (--optimizer)"
    if request.gpus > request.gpus_per_node and options.interconnect is None:
        yield f"{network_of(request.gpu).name} between nodes (--interconnect)"


LOCAL = "local"
"""The cluster whose measurements count where none is named."""


def answer(options: EstimateOptions) -> Answer:
    """Return which strategies fit, how fast they are, and which to take.

    Raises:
        UserError: options are missing or make no sense; all of them at once.
    """
    return answer_of(request_of(options))


def request_of(options: EstimateOptions, *, model: ModelShape | None = None) -> Request:
    """Return what is asked, with what the cluster that is named says and has measured.

    `model` is what the options call by its name, where that was read before.

    Raises:
        UserError: options are missing or make no sense; all of them at once.
    """
    cluster = None
    if options.cluster is not None:
        from clusterkit.config.load import load_settings  # noqa: PLC0415 - 0.1 s: pydantic

        cluster = load_settings().cluster(options.cluster)
    request = read_options(options, cluster=cluster, model=model)
    calibration = _calibration(options.cluster or LOCAL, request.gpu.name)
    return replace(request, calibration=calibration)


def _calibration(cluster: str, gpu: str) -> Calibration | None:
    """Return what was measured on a cluster, if that was the same sort of GPU."""
    if not os.environ.get("HOME") and not os.environ.get("XDG_CONFIG_HOME"):
        return None
    known = load_calibration(calibration_file(cluster, os.environ))
    known = known.on(gpu) if known is not None else None
    return None if known == Calibration() else known


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
        yield Problem(message=f"owned machines need {', '.join(lacking)} as well", hint=_EXAMPLE)
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
