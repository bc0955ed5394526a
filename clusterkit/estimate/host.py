"""What offloaded states need beside the GPUs: memory of the host, space on its disks."""

from __future__ import annotations

from clusterkit.estimate.activations import kept_per_token, tokens_of
from clusterkit.estimate.setup import Library, Offload, Optimizer, Setup
from clusterkit.estimate.stage import stages
from clusterkit.estimate.states import bytes_of, shares_of

_BUFFERS = 1.5
"""`additional_buffer_factor` of DeepSpeed's estimators: pinned copies on their way."""


def host_bytes(setup: Setup) -> float:
    """Return the RAM that a node needs for what is offloaded, in bytes."""
    states = _offloaded(setup, Offload.CPU) * _ranks(setup)
    if setup.library is Library.DEEPSPEED:
        states *= _BUFFERS
    if setup.offload_activations:
        stage = stages(setup)[0]
        states += kept_per_token(setup) * stage.held.blocks * tokens_of(setup) * _ranks(setup)
    return states


def nvme_bytes(setup: Setup) -> float:
    """Return the space that a node needs on its disks, in bytes."""
    return _offloaded(setup, Offload.NVME) * _ranks(setup)


def _ranks(setup: Setup) -> int:
    return min(setup.gpus, setup.gpus_per_node)


def _offloaded(setup: Setup, where: Offload) -> float:
    """Return the bytes of one rank that are kept in that place."""
    each, shares = bytes_of(setup), shares_of(setup)
    trained = max(stage.held.trained for stage in stages(setup))
    total = 0.0
    if setup.offload_optimizer is where:
        total += trained * (each.optimizer * shares.optimizer + 4 * shares.gradients)
    if setup.offload_params is where:
        total += trained * each.params * shares.params
    if where is Offload.CPU and setup.optimizer is Optimizer.PAGED_ADAMW_8BIT:
        total += 2 * trained * shares.optimizer
    return total
