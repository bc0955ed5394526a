"""What it costs in time that states are not on the GPU."""

from __future__ import annotations

from collections.abc import Mapping

from clusterkit.estimate.setup import Offload, Precision, Setup
from clusterkit.estimate.speed.wire import gradient_wire_bytes, owned_params, wire_bytes

_PCIE_GBS: Mapping[int, float] = {3: 6.0, 4: 12.0, 5: 24.0, 6: 48.0}
"""One direction with pinned memory while every GPU of the node uses its slot, about half of what
one alone gets (DeepSpeed issues 1137 and 6695: 12 to 16 GB/s alone, 3 with 16 GPUs sharing)."""
_HOST_ADAM_GBS = 110.0
"""Of all processes of a node together: Adam in the host's memory."""
_ADAM_TENSORS = 7
"""Weight, gradient and two moments read, all but the gradient written."""
_NVME_READ_GBS, _NVME_WRITE_GBS = 10.0, 5.0
"""Of a node with four disks (DeepSpeed docs/_tutorials/deepnvme.md)."""
_STATE_TENSORS = 3
"""The weight and two moments."""


def offload_s(setup: Setup) -> float:
    """Return the seconds that offloading adds to a step; nothing of it hides behind computing."""
    if setup.offload_optimizer is Offload.NONE and setup.offload_params is Offload.NONE:
        return 0.0
    held = owned_params(setup)
    on_node = held * min(setup.gpus, setup.gpus_per_node)
    pcie = _PCIE_GBS.get(setup.gpu.pcie_gen, _PCIE_GBS[3]) * 1e9
    each = 2 if setup.precision is Precision.PURE_BF16 else 4
    seconds = 0.0
    if setup.offload_optimizer is not Offload.NONE:
        seconds += held * (gradient_wire_bytes(setup) + wire_bytes(setup)) / pcie
        seconds += on_node * _ADAM_TENSORS * each / (_HOST_ADAM_GBS * 1e9)
    if setup.offload_params is not Offload.NONE:
        seconds += 2 * setup.accumulation * held * wire_bytes(setup) / pcie
    if setup.offload_optimizer is Offload.NVME:
        state = on_node * _STATE_TENSORS * each
        seconds += state / (_NVME_READ_GBS * 1e9) + state / (_NVME_WRITE_GBS * 1e9)
    if setup.offload_params is Offload.NVME:
        weights = on_node * wire_bytes(setup)
        seconds += 2 * setup.accumulation * weights / (_NVME_READ_GBS * 1e9)
    return seconds
