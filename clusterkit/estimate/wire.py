"""What a rank holds and sends, in numbers and bytes, and the links that it is sent over.

Gradients are counted in 16 bits with every 16-bit precision (FSDP's `reduce_dtype`, DeepSpeed's
communication dtype, `bf16_compress_hook` in DDP) and in 4 bytes with `fp32_gradients`; torch's DDP
of fp32 parameters without that hook sends twice what stands here.
"""

from __future__ import annotations

from clusterkit.estimate.calibration import Calibration
from clusterkit.estimate.interconnects import Fabric, network_of
from clusterkit.estimate.setup import Precision, Setup


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
    return max(setup.gpus_per_node, min(setup.gpu.linked or 0, setup.gpus))


def params_per_rank(setup: Setup) -> float:
    """Return the parameters that a rank would hold, did data-parallel ranks not shard them.

    With adapters, those that are trained: nothing else is exchanged.
    """
    model = setup.model
    if setup.adapter is not None:
        return adapter_params(setup) / (setup.tp * setup.pp)
    experts = 0.0
    if model.experts:
        sparse = model.layers - min(model.dense_layers, model.layers)
        matrices = 3 if model.gated else 2
        experts = float(sparse * model.experts * matrices * model.hidden * model.ffn)
    dense = model.params - experts
    return dense / (setup.tp * setup.pp) + experts / (setup.tp * setup.pp * setup.ep)


def adapter_params(setup: Setup) -> float:
    """Return the parameters of LoRA's matrices: r (inputs + outputs) for each that it joins."""
    model, adapter = setup.model, setup.adapter
    if adapter is None:
        return 0.0
    query, key = model.heads * model.head_dim, model.kv_heads * model.head_dim
    widths = 2 * (model.hidden + query) + 2 * (model.hidden + key)
    if adapter.on_mlp:
        widths += (3 if model.gated else 2) * (model.hidden + model.ffn)
    return float(model.layers * adapter.rank * widths)


def layers_per_rank(setup: Setup) -> float:
    """Return how many blocks a pipeline stage has; the largest one where they do not divide."""
    return float(-(-setup.model.layers // setup.pp))


def wire_bytes(setup: Setup) -> int:
    """Return the bytes of a parameter that is gathered."""
    return 4 if setup.precision is Precision.FP32 else 2


def gradient_wire_bytes(setup: Setup) -> int:
    """Return the bytes of a gradient that is reduced."""
    return 4 if setup.fp32_gradients else wire_bytes(setup)


def activation_bytes(setup: Setup) -> int:
    """Return the bytes of an element of an activation."""
    return 4 if setup.precision is Precision.FP32 else 2


def micro_batch_bytes(setup: Setup) -> float:
    """Return the bytes between two blocks, of one micro batch on one context-parallel rank."""
    tokens = setup.micro_batch * setup.seq / setup.cp
    return tokens * setup.model.hidden * activation_bytes(setup)
