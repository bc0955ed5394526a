"""What offloaded states need beside the GPUs: memory of the host, space on its disks."""

from __future__ import annotations

from clusterkit.estimate.activations import kept_per_token, tokens_of
from clusterkit.estimate.setup import Library, Offload, Optimizer, Setup
from clusterkit.estimate.stage import SUB_GROUP, stages
from clusterkit.estimate.states import bytes_of, frozen_bytes, shares_of

_BUFFERS = 1.5
"""`additional_buffer_factor` of DeepSpeed's estimators: pinned copies on their way."""
_PARAM_BUFFERS = 5 * 1e8
"""Elements of 16 bits that a rank pins to swap parameters: `buffer_count` 5, `buffer_size` 1e8."""
_OPTIMIZER_BUFFERS = 4
"""Of fp32, each as large as what is stepped at once: `buffer_count` of offload_optimizer."""


def host_bytes(setup: Setup) -> float:
    """Return the RAM that a node needs for what is offloaded, in bytes."""
    states = _offloaded(setup, Offload.CPU) * _ranks(setup)
    if setup.library is Library.DEEPSPEED:
        states *= _BUFFERS
    states += _pinned(setup) * _ranks(setup)
    if setup.offload_activations:
        stage = stages(setup)[0]
        states += kept_per_token(setup) * stage.held.blocks * tokens_of(setup) * _ranks(setup)
    return states


def nvme_bytes(setup: Setup) -> float:
    """Return the space that a node needs on its disks, in bytes."""
    return _offloaded(setup, Offload.NVME) * _ranks(setup)


def _ranks(setup: Setup) -> int:
    return min(setup.gpus, setup.gpus_per_node)


def _pinned(setup: Setup) -> float:
    """Return the bytes that one rank pins to read from and write to disks (DeepSpeed's docs).

    partitioned_optimizer_swapper.py takes buffers as large as the largest group that is stepped
    at once, partitioned_param_swapper.py takes them as ds_config.json says.
    """
    total = 0.0
    if setup.offload_optimizer is Offload.NVME:
        shares = shares_of(setup)
        owned = max(stage.held.kept_trained(shares.optimizer) for stage in stages(setup))
        total += 4 * _OPTIMIZER_BUFFERS * min(owned, SUB_GROUP)
    if setup.offload_params is Offload.NVME:
        total += bytes_of(setup).params * _PARAM_BUFFERS
    return total


def _offloaded(setup: Setup, where: Offload) -> float:
    """Return the bytes of one rank that are kept in that place."""
    each, shares = bytes_of(setup), shares_of(setup)
    held = max((stage.held for stage in stages(setup)), key=lambda held: held.params)
    optimizer = held.kept_trained(shares.optimizer)
    total = 0.0
    if setup.offload_optimizer is where:
        total += each.optimizer * optimizer + 4 * held.kept_trained(shares.gradients)
    if setup.offload_params is where:
        total += each.params * held.kept_trained(shares.params) + frozen_bytes(setup, held)
    if where is Offload.CPU and setup.optimizer is Optimizer.PAGED_ADAMW_8BIT:
        total += 2 * optimizer
    return total
