"""A layout in the words of those that make the groups: flags and code, for the training script."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from clusterkit.core.errors import UserError
from clusterkit.launch.rank_layout.parallelism import MEGATRON_ORDER, Parallelism

MEGATRON_FLAGS = {
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "vpp": "--num-virtual-stages-per-pipeline-rank",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
}
"""The argument of Megatron-LM for each number of ranks."""
_PP_BEFORE_DP = "tp-cp-ep-pp-dp"


class Export(StrEnum):
    """Whose words."""

    ENV = "env"
    MEGATRON = "megatron"
    DEEPSPEED = "deepspeed"
    DEVICEMESH = "devicemesh"


def export(parallelism: Parallelism, target: Export) -> str:
    """Return the lines that make these very groups.

    Raises:
        UserError: the target cannot number ranks so.
    """
    makers = {
        Export.ENV: lambda of: "".join(f"export {k}={v}\n" for k, v in variables(of).items()),
        Export.MEGATRON: _megatron,
        Export.DEEPSPEED: _deepspeed,
        Export.DEVICEMESH: _devicemesh,
    }
    return makers[target](parallelism)


def variables(parallelism: Parallelism) -> Mapping[str, str]:
    """Return the sizes as environment variables, for scripts of one's own."""
    sizes = {f"{n.upper()}_SIZE": str(getattr(parallelism, n)) for n in ("tp", "cp", "ep", "dp")}
    meshes = {"MESH": parallelism.dense}
    meshes |= {"EXPERT_MESH": parallelism.experts} if parallelism.ep > 1 else {}
    return {
        **sizes,
        "PP_SIZE": str(parallelism.pp),
        "RANK_ORDER": "-".join(parallelism.order),
        **{f"{of}_DIM_NAMES": ",".join(reversed(mesh.names)) for of, mesh in meshes.items()},
        **{f"{of}_SHAPE": ",".join(map(str, reversed(mesh.sizes))) for of, mesh in meshes.items()},
    }


def _megatron(parallelism: Parallelism) -> str:
    """Write flags of Megatron-LM, which knows two orders (megatron/training/initialize.py)."""
    sizes = {MEGATRON_FLAGS[name]: getattr(parallelism, name) for name in ("tp", "pp", "cp", "ep")}
    flags = [f"{flag} {size}" for flag, size in sizes.items()]
    if not _numbers_like(parallelism, MEGATRON_ORDER):
        flags.append("--use-tp-pp-dp-mapping")
    known = any(_numbers_like(parallelism, order) for order in (MEGATRON_ORDER, _PP_BEFORE_DP))
    if not known or not parallelism.same_stages:
        raise UserError(
            f"Megatron-LM cannot number these ranks in the order {'-'.join(parallelism.order)}",
            hint=f"--order {MEGATRON_ORDER}; without cp and ep, {_PP_BEFORE_DP} too",
        )
    return " \\\n".join(flags) + "\n"


def _deepspeed(parallelism: Parallelism) -> str:
    """Write DeepSpeed's topology: its axes are pipe, data, model (runtime/pipe/topology.py)."""
    if parallelism.cp > 1:
        raise UserError(
            f"DeepSpeed's topology has no place for cp {parallelism.cp}",
            hint="--cp 1; its own way to divide sequences is Ulysses (sequence_parallel_size)",
        )
    if not _numbers_like(parallelism, "tp-ep-dp-pp"):
        raise UserError(
            f"DeepSpeed does not number ranks in the order {'-'.join(parallelism.order)}",
            hint=f"--order {MEGATRON_ORDER}",
        )
    of = parallelism
    sizes = f"num_pp={of.pp}, num_mp={of.tp}, num_dp={of.dp}"
    return (
        "from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology\n\n"
        f"topology = PipeModelDataParallelTopology({sizes})\n"
        + (f"ep_size = {of.ep}  # for deepspeed.moe.layer.MoE\n" if of.ep > 1 else "")
    )


def _devicemesh(parallelism: Parallelism) -> str:
    """Write torch's `init_device_mesh`, whose last dimension is the fastest."""
    meshes = {"mesh": parallelism.dense}
    meshes |= {"expert_mesh": parallelism.experts} if parallelism.ep > 1 else {}
    text = "from torch.distributed.device_mesh import init_device_mesh\n\n"
    for name, mesh in meshes.items():
        shape = ", ".join(map(str, reversed(mesh.sizes)))
        names = ", ".join(f'"{dimension}"' for dimension in reversed(mesh.names))
        text += f'{name} = init_device_mesh("cuda", ({shape}), mesh_dim_names=({names}))\n'
    return text


def _numbers_like(parallelism: Parallelism, order: str) -> bool:
    """Tell whether another order gives every rank the same place: sizes of 1 do not matter."""
    for mesh in (parallelism.dense, parallelism.experts):
        named = zip(mesh.names, mesh.sizes, strict=True)
        several = ["dp" if name == "edp" else name for name, size in named if size > 1]
        if several != [name for name in order.split("-") if name in several]:
            return False
    return True
