"""What a rank holds and sends, in numbers and bytes, and the links that it is sent over."""

from __future__ import annotations

from clusterkit.estimate.factors import Calibration
from clusterkit.estimate.machines.interconnects import Fabric, fast_domain, network_of
from clusterkit.estimate.memory.states import bytes_of, shares_of, stages_of
from clusterkit.estimate.setup import FSDP, Library, Precision, Setup


def fabric_of(setup: Setup, calibration: Calibration | None = None) -> Fabric:
    """Return the links that a setup runs over; the usual network where it names none."""
    measured = calibration or Calibration()
    return Fabric(
        gpu=setup.gpu,
        gpus_per_node=domain_of(setup),
        network=network_of(setup.gpu, setup.interconnect),
        intra_scale=measured.intra_busbw_scale,
        inter_scale=measured.inter_busbw_scale,
    )


def domain_of(setup: Setup) -> int:
    """Return how many GPUs share the fast links: those of a node, or of a rack with NVLink."""
    return fast_domain(setup.gpu, setup.gpus_per_node, setup.gpus)


def params_per_rank(setup: Setup) -> float:
    """Return the parameters that a rank would hold, did data-parallel ranks not shard them.

    Those of the fullest pipeline stage, for which the others wait; with adapters, those that are
    trained: nothing else is exchanged.
    """
    return max(held.trained for held in stages_of(setup))


def owned_params(setup: Setup) -> float:
    """Return the trained parameters whose optimizer states a rank keeps, and which it steps."""
    share = shares_of(setup).optimizer
    return max(held.kept_trained(share) for held in stages_of(setup))


def gradient_wire_bytes(setup: Setup) -> int:
    """Return the bytes of a gradient that is reduced, as the library sends it by itself.

    FSDP reduces in fp32 (`reduce_dtype`, as `--launch` writes it), DeepSpeed in the 16 bits that it
    multiplies in (`communication_data_type`; `comm_dtype` under torch's autocast). DDP and Megatron
    send gradients as they are kept: in fp32 beside fp32 parameters, or as Megatron's main ones.
    """
    if setup.fp32_gradients or setup.precision is Precision.FP32:
        return 4
    if setup.library is Library.DEEPSPEED:
        return 2
    return 4 if setup.library in FSDP else round(bytes_of(setup).gradients)


def micro_batch_bytes(setup: Setup) -> float:
    """Return the bytes between two blocks, of one micro batch on one context-parallel rank."""
    return setup.rank_tokens * setup.model.hidden * setup.element_bytes
