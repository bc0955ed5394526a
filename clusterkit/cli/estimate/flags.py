"""The flags of `clusterkit estimate`, and what they ask for."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clusterkit.cli.frame.flags import cluster_option

if TYPE_CHECKING:
    from clusterkit.estimate.query.arguments import EstimateWords


def _option(*names: str, help_text: str, panel: str = "Options", **more: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, show_default=False, **more)


_MODEL, _MACHINES, _TRAINING = "Model", "Machines", "Training"
_ASKED, _FILES = "What to show", "Measurements"


@dataclasses.dataclass(frozen=True, slots=True)
class EstimateFlags:
    """What the flags said; None where they said nothing."""

    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Where --launch writes (launch-STRATEGY).", metavar="[DIR]", show_default=False
        ),
    ] = None
    model: Annotated[
        str | None,
        _option(
            "--model",
            "-m",
            help_text="Name (clusterkit explain models), config.json or its folder, or "
            "package.module:factory.",
            panel=_MODEL,
            metavar="MODEL",
        ),
    ] = None
    params: Annotated[
        str | None,
        _option(
            "--params",
            help_text="Instead: so many parameters in the usual shape, as 7B.",
            panel=_MODEL,
            metavar="N",
        ),
    ] = None
    seq: Annotated[
        int | None,
        _option("--seq", help_text="Tokens of a sequence (4096, or what the model has).",
                panel=_TRAINING, metavar="L"),
    ] = None  # fmt: skip
    micro_batch: Annotated[
        int | None,
        _option("--micro-batch", "-b", help_text="Sequences that a GPU takes at once (1).",
                panel=_TRAINING, metavar="B"),
    ] = None  # fmt: skip
    accumulation: Annotated[
        int | None,
        _option("--accumulation", help_text="How often before a step (1).",
                panel=_TRAINING, metavar="K"),
    ] = None  # fmt: skip
    global_batch: Annotated[
        int | None,
        _option("--global-batch", help_text="Sequences of a step in all.",
                panel=_TRAINING, metavar="B"),
    ] = None  # fmt: skip
    gpu: Annotated[
        str | None,
        _option(
            "--gpu",
            help_text="h100, a100-40, ... (clusterkit explain gpus), or figures: "
            "mine:memory=48,bf16=200,bandwidth=900.",
            panel=_MACHINES,
            metavar="NAME",
        ),
    ] = None
    gpus: Annotated[
        int | None, _option("--gpus", "-n", help_text="How many.", panel=_MACHINES, metavar="N")
    ] = None
    gpus_per_node: Annotated[
        int | None,
        _option("--gpus-per-node", "-g", help_text="In each machine (8, or the cluster's).",
                panel=_MACHINES, metavar="G"),
    ] = None  # fmt: skip
    host_memory: Annotated[
        float | None,
        _option("--host-memory", help_text="RAM of a node in GB, for what is offloaded (what is "
                "usual with such GPUs).", panel=_MACHINES, metavar="GB"),
    ] = None  # fmt: skip
    interconnect: Annotated[
        str | None,
        _option("--interconnect", help_text="Network between nodes: ndr, roce-100, 4xhdr, ... "
                "(clusterkit explain interconnects).",
                panel=_MACHINES, metavar="NAME"),
    ] = None  # fmt: skip
    cluster: Annotated[
        str | None,
        cluster_option(
            "Cluster whose measurements and slots count.", panel=_MACHINES, variable=None
        ),
    ] = None
    strategy: Annotated[
        str | None,
        _option(
            "--strategy",
            "-s",
            help_text="Only this one: ddp, fsdp, fsdp-hybrid, zero1, zero2, zero3, zero3-offload, "
            "megatron-tp8-pp2, lora, ... (clusterkit explain strategies).",
            panel=_TRAINING,
            metavar="NAME",
        ),
    ] = None
    tp: Annotated[
        int | None,
        _option("--tp", help_text="Tensor-parallel ranks.", panel=_TRAINING, metavar="T"),
    ] = None
    pp: Annotated[
        int | None, _option("--pp", help_text="Pipeline stages.", panel=_TRAINING, metavar="P")
    ] = None
    vpp: Annotated[
        int | None,
        _option("--vpp", help_text="Chunks of each stage.", panel=_TRAINING, metavar="V"),
    ] = None
    cp: Annotated[
        int | None,
        _option("--cp", help_text="Context-parallel ranks.", panel=_TRAINING, metavar="C"),
    ] = None
    ep: Annotated[
        int | None,
        _option("--ep", help_text="Expert-parallel ranks.", panel=_TRAINING, metavar="E"),
    ] = None
    precision: Annotated[
        str | None,
        _option("--precision", help_text="bf16 (fp16 where there is none), fp16, fp32, fp8, "
                "pure-bf16, amp-bf16, amp-fp16.", panel=_TRAINING, metavar="NAME"),
    ] = None  # fmt: skip
    optimizer: Annotated[
        str | None,
        _option("--optimizer", help_text="adamw, adamw-8bit, paged-adamw-8bit, adafactor, sgd.",
                panel=_TRAINING, metavar="NAME"),
    ] = None  # fmt: skip
    checkpointing: Annotated[
        str | None,
        _option("--checkpointing", help_text="Of activations: none, selective, full.",
                panel=_TRAINING, metavar="NAME"),
    ] = None  # fmt: skip
    loss: Annotated[
        str | None,
        _option("--loss", help_text="eager, chunked, fused.", panel=_TRAINING, metavar="NAME"),
    ] = None
    offload: Annotated[
        str | None,
        _option("--offload", help_text="none, cpu, nvme.", panel=_TRAINING, metavar="WHERE"),
    ] = None
    lora_rank: Annotated[
        int | None,
        _option("--lora-rank", help_text="Train adapters of this rank only.",
                panel=_TRAINING, metavar="R"),
    ] = None  # fmt: skip
    qlora: Annotated[
        bool, _option("--qlora", help_text="Adapters, frozen weights in 4 bits.", panel=_TRAINING)
    ] = False
    no_sync: Annotated[
        bool,
        _option("--no-sync", help_text="Reduce gradients only once a step (FSDP's no_sync).",
                panel=_TRAINING),
    ] = False  # fmt: skip
    compiled: Annotated[
        bool, _option("--compile", help_text="With torch.compile.", panel=_TRAINING)
    ] = False
    no_flash: Annotated[
        bool,
        _option("--no-flash-attention", help_text="Attention keeps its maps.", panel=_TRAINING),
    ] = False
    margin: Annotated[
        str | None,
        _option("--margin", help_text="Part of the GPU to leave free (8%).", metavar="PART"),
    ] = None
    tokens: Annotated[
        str | None,
        _option("--tokens", help_text="Say how long so many take, as 2T.", panel=_ASKED,
                metavar="N"),
    ] = None  # fmt: skip
    price: Annotated[
        float | None,
        _option("--price", help_text="And what it costs, at this price of a GPU hour.",
                panel=_ASKED, metavar="X"),
    ] = None  # fmt: skip
    explain: Annotated[
        bool,
        _option("--explain", help_text="Every term of one strategy, with formula and source.",
                panel=_ASKED),
    ] = False  # fmt: skip
    scale: Annotated[
        bool,
        _option("--scale", help_text="Throughput over the number of GPUs.", panel=_ASKED),
    ] = False
    plot: Annotated[
        Path | None,
        _option("--plot", help_text="Draw memory and scaling into this file (png, svg, pdf).",
                panel=_ASKED, metavar="FILE"),
    ] = None  # fmt: skip
    launch: Annotated[
        bool,
        _option("--launch", help_text="Print the submit line, write the configuration into DIR.",
                panel=_ASKED),
    ] = False  # fmt: skip
    calibrate: Annotated[
        Path | None,
        _option("--calibrate", help_text="Learn from a measured step (for --cluster).",
                panel=_FILES, metavar="FILE"),
    ] = None  # fmt: skip
    score: Annotated[
        Path | None,
        _option("--score", help_text="Compare with a table of published figures.",
                panel=_FILES, metavar="FILE"),
    ] = None  # fmt: skip
    json: Annotated[bool, _option("--json", help_text="Print one JSON document.")] = False

    def words(self) -> EstimateWords:
        """Return the question, apart from what is to be done with its answer."""
        from clusterkit.estimate.query.arguments import EstimateWords

        names = [field.name for field in dataclasses.fields(EstimateWords)]
        return EstimateWords(**{name: getattr(self, name) for name in names})


def takes_flags(verb: Callable[[EstimateFlags], None]) -> Callable[..., None]:
    """Give `verb` the parameters of `EstimateFlags`."""

    def command(**values: Any) -> None:
        verb(EstimateFlags(**values))

    parameters = inspect.signature(EstimateFlags, eval_str=True).parameters.values()
    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    )
    return command
