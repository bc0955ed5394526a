"""What of a script needs a PyTorch that is built for GPUs."""

from __future__ import annotations

from clusterkit.core.model import LaunchPlan
from clusterkit.launch.scripts.reading import Use, script_of

_NEEDS_CUDA = frozenset(
    f"torch.cuda.{name}"
    for name in (
        "set_device", "current_device", "get_device_name", "get_device_properties", "synchronize",
        "get_device_capability", "mem_get_info", "Stream", "Event", "CUDAGraph", "current_stream",
        "reset_peak_memory_stats", "set_per_process_memory_fraction", "device",
    )
)  # fmt: skip


def gpu_use(plan: LaunchPlan) -> str | None:
    """Return what the script of a plan does in any case that no build for CPUs can, and where."""
    script = script_of(plan)
    if script is None or "torch" not in script.imports:
        return None
    use = next(filter(_needs_cuda, script.uses), None)
    return None if use is None else f"{plan.script}:{use.line} calls {_shown(use)}"


def _needs_cuda(use: Use) -> bool:
    if not use.called:
        return False
    if use.name == "torch.distributed.init_process_group":
        return "nccl" in use.texts
    if use.name.endswith((".to", ".cuda")):
        return use.name.endswith(".cuda") or any(text.startswith("cuda") for text in use.texts)
    return use.name in _NEEDS_CUDA


def _shown(use: Use) -> str:
    text = next(
        (f'"{text}"' for text in sorted(use.texts) if text.startswith(("cuda", "nccl"))), ""
    )
    return f"{use.name.removeprefix('?')}({text})"
