"""Everything that an estimate is asked about, in one frozen value: model, machines, strategy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from clusterkit.estimate.machines.gpus import Gpu
from clusterkit.estimate.shapes import ModelShape


class Library(StrEnum):
    """Who holds the parameters, gradients and optimizer states: that decides their bytes."""

    DDP = "ddp"
    """torch's DistributedDataParallel, or a single GPU."""
    FSDP1 = "fsdp1"
    FSDP2 = "fsdp2"
    DEEPSPEED = "deepspeed"
    MEGATRON = "megatron"
    """Megatron-LM and those that keep states as it does (NeMo, nanotron, Megatron-DeepSpeed)."""


FSDP = frozenset({Library.FSDP1, Library.FSDP2})
TORCH = FSDP | {Library.DDP}
"""Libraries that keep parameters in fp32 and cast them for products; the others keep copies."""


class Sharding(StrEnum):
    """What the data-parallel ranks divide among themselves."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    """ZeRO-1; the distributed optimizer of Megatron."""
    GRADIENTS = "gradients"
    """ZeRO-2, SHARD_GRAD_OP (which gathers parameters once per step)."""
    FULL = "full"
    """ZeRO-3, FULL_SHARD."""
    HYBRID = "hybrid"
    """HYBRID_SHARD: all of it within `shard_group` ranks, copies beyond."""


class Precision(StrEnum):
    """How numbers are kept and multiplied."""

    FP32 = "fp32"
    AMP_BF16 = "amp-bf16"
    """Parameters in fp32, products in bf16 (autocast, or FSDP's mixed precision)."""
    AMP_FP16 = "amp-fp16"
    BF16 = "bf16"
    """Parameters in bf16 with fp32 copies in the optimizer (DeepSpeed, Megatron)."""
    FP16 = "fp16"
    PURE_BF16 = "pure-bf16"
    """Parameters, gradients and optimizer states in bf16."""
    FP8 = "fp8"
    """Products in fp8, everything that is kept as with BF16."""


class Checkpointing(StrEnum):
    """Which activations are computed again in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    """Results of matrix products and attention are kept, everything else is computed again."""
    ALTERNATE = "alternate"
    """Every second block as a whole."""
    FULL = "full"


class Offload(StrEnum):
    """Where states stay that are not on the GPU."""

    NONE = "none"
    CPU = "cpu"
    NVME = "nvme"


class Loss(StrEnum):
    """How the logits are kept: whole and twice, in pieces, or never."""

    EAGER = "eager"
    CHUNKED = "chunked"
    """The sequence in 8 pieces, each with its own logits."""
    COMPILED = "compiled"
    """Whole, and only their gradient beside them: the loss is one kernel (torch.compile, the
    cross entropy of flash-attn)."""
    FUSED = "fused"
    """Never whole: head and loss are one kernel (Liger), which brings fused norms as well."""


class Optimizer(StrEnum):
    """The optimizer, for the bytes of its states."""

    ADAMW = "adamw"
    ADAMW_8BIT = "adamw-8bit"
    PAGED_ADAMW_8BIT = "paged-adamw-8bit"
    ADAFACTOR = "adafactor"
    SGD = "sgd"
    """With momentum."""


class Compression(StrEnum):
    """What gradients are made smaller by before whole copies of a model exchange them."""

    NONE = "none"
    FP16 = "fp16"
    """In 16 bits: torch's `fp16_compress_hook` or `bf16_compress_hook`, Horovod's fp16."""
    POWERSGD = "powersgd"
    """Each matrix as two of rank `powersgd_rank` (facts.tsv): torch's `powerSGD_hook`."""
    ONE_BIT = "1-bit"
    """1-bit Adam, 1-bit LAMB, 0/1 Adam after the warm-up: signs of the moments, and a scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """LoRA: low-rank matrices beside frozen weights."""

    rank: int = 16
    on_mlp: bool = True
    """Whether the matrices of the MLP get one, beside those of attention."""
    on_embeddings: bool = False
    """Whether embedding and head are trained as well, each as a whole copy."""
    quantized: bool = False
    """QLoRA: the frozen weights are kept in 4 bits (NF4 with double quantisation)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One way to train one model on some GPUs."""

    model: ModelShape
    gpu: Gpu
    gpus: int
    gpus_per_node: int
    library: Library
    sharding: Sharding = Sharding.NONE
    shard_group: int | None = None
    """Ranks that divide states among themselves, where that is not all of `dp`."""
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    """Virtual pipeline stages per GPU (interleaving)."""
    cp: int = 1
    """Ranks that divide the sequence (context parallel)."""
    ep: int = 1
    """Ranks that divide the experts."""
    sequence_parallel: bool = True
    """Whether norms and dropouts are divided by `tp` as well."""
    seq: int = 4096
    micro_batch: int = 1
    accumulation: int = 1
    """Micro batches of a step; with a pipeline, those that pass through it."""
    precision: Precision = Precision.BF16
    optimizer: Optimizer = Optimizer.ADAMW
    step_copies: int | None = None
    """Copies of a moment that its step makes: 1 by torch's `foreach` (2 before torch 2.1), none
    where it is fused into one kernel. None for what the library does by itself."""
    checkpointing: Checkpointing = Checkpointing.NONE
    loss: Loss = Loss.EAGER
    fp32_logits: bool = True
    """Whether the loss is computed in fp32, as most programs do, or as the logits come."""
    split_embedding: bool = True
    """Whether tensor-parallel ranks divide the embedding; else each has a whole one."""
    loss_parallel: bool = True
    """Whether tensor-parallel ranks divide the logits among themselves."""
    flash_attention: bool = True
    fused_norms: bool | None = None
    """Whether a norm is one kernel, which keeps less. None for what the library does."""
    compiled: bool = False
    offload_optimizer: Offload = Offload.NONE
    offload_params: Offload = Offload.NONE
    offload_activations: bool = False
    """Whether what blocks keep for the backward pass waits in the host's memory."""
    optimizer_in_backward: bool = False
    """Whether each gradient is used and dropped at once, so that they are never all there."""
    bucket_view: bool = False
    """Whether gradients live in the buckets of DDP (`gradient_as_bucket_view`), not beside."""
    no_sync: bool = False
    """Whether gradients are reduced only after the last micro batch (FSDP's `no_sync`)."""
    fp32_gradients: bool = False
    """Whether gradients are accumulated in fp32 (Megatron, nanotron)."""
    zeropp: bool = False
    """Whether ZeRO-3 sends quantized weights and gradients, and keeps a second copy of the weights
    in each node (ZeRO++, with all of its three parts)."""
    compression: Compression = Compression.NONE
    adapter: Adapter | None = None
    interconnect: str | None = None
    """Name of the network between nodes; None for the usual one of such GPUs."""

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.gpus // (self.tp * self.pp * self.cp)

    @property
    def nodes(self) -> int:
        """Machines."""
        return -(-self.gpus // self.gpus_per_node)

    @property
    def shard_ranks(self) -> int:
        """Ranks among which states are divided: context-parallel ranks hold copies, too."""
        return self.shard_group or self.dp * self.cp

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.micro_batch * self.accumulation * self.dp

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.global_batch * self.seq

    @property
    def rank_tokens(self) -> float:
        """Tokens of a micro batch that one rank works on."""
        return self.micro_batch * self.seq / self.cp

    @property
    def element_bytes(self) -> int:
        """Bytes of an activation's element, and of a parameter that is gathered."""
        return 4 if self.precision is Precision.FP32 else 2

    @property
    def stage_layers(self) -> float:
        """Blocks of a pipeline stage; of the largest one where they do not divide."""
        return float(-(-self.model.layers // self.pp))
