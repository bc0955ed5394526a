"""What offloaded states need beside the GPUs, and what nodes have: RAM, space on disks."""

from __future__ import annotations

from clusterkit.estimate.facts import FACTS
from clusterkit.estimate.machines.gpus import Gpu
from clusterkit.estimate.memory.activations import kept_per_token
from clusterkit.estimate.memory.stage import stages
from clusterkit.estimate.memory.states import bytes_of, frozen_bytes, shares_of
from clusterkit.estimate.setup import Library, Offload, Optimizer, Setup


def usual_ram(gpu: Gpu) -> float:
    """Return the RAM that a node usually has for each such GPU, in bytes."""
    if gpu.memory_gb >= FACTS["system_gb"]:
        return FACTS["ram_of_system"]
    server = gpu.memory_gb >= FACTS["server_card_gb"]
    return FACTS["ram_of_server" if server else "ram_of_workstation"]


def usual_disk(gpu: Gpu) -> float:
    """Return the space that a node usually has on fast disks for each such GPU, in bytes."""
    server = gpu.memory_gb >= FACTS["server_card_gb"]
    return FACTS["disk_of_server" if server else "disk_of_workstation"]


def host_bytes(setup: Setup) -> float:
    """Return the RAM that a node needs for what is offloaded, in bytes."""
    states = _offloaded(setup, Offload.CPU) * _ranks(setup)
    if setup.library is Library.DEEPSPEED:
        states *= FACTS["host_buffers"]
    states += _pinned(setup) * _ranks(setup)
    if setup.offload_activations:
        stage = stages(setup)[0]
        states += kept_per_token(setup) * stage.held.blocks * setup.rank_tokens * _ranks(setup)
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
        total += 4 * FACTS["optimizer_buffers"] * min(owned, FACTS["sub_group_params"])
    if setup.offload_params is Offload.NVME:
        total += bytes_of(setup).params * FACTS["param_buffer_elements"]
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
