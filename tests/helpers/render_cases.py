"""Jobs that together use every branch of the templates; golden files and linters run on them."""

from __future__ import annotations

import dataclasses
from typing import Any

from clusterkit.core.model import (
    ClusterKind,
    ClusterSpec,
    ContainerRuntime,
    GpuRequest,
    HorovodController,
    Host,
    LaunchPlan,
    NodeOrder,
)
from clusterkit.launch.options import Component, JobSpec
from clusterkit.launch.plan import make_plan

WORKDIR = "/home/ada/my project"

NASTY = {
    "SPACES": "a b  c",
    "QUOTES": 'it\'s "quoted"',
    "DOLLAR": "$HOME `id` $(id) \\",
    "COMMAS": "a=1,b=2",
    "LINES": "one\ntwo\n",
    "UNICODE": "grün ✓",
    "EMPTY": "",
    # Names that a careless script would use for itself.
    **{name: f"my {name}" for name in ("command", "i", "child", "status", "step", "srun", "addr")},
}
NASTY_ARGS = ("--text", 'it\'s "a" $b `c`', "new\nline", "", "--glob=*", "ü ✓", "a,b;c&d|e")

SLURM = ClusterSpec(
    name="a100",
    kind=ClusterKind.SLURM,
    partition="gpu",
    account="ml",
    qos="high",
    constraint="a100&ib",
    gpus_per_node=8,
    cpus_per_node=64,
    memory="900G",
    time="1-00:00:00",
    env={"NCCL_DEBUG": "WARN"},
    network_interface="ib0",
)
PLAIN = ClusterSpec(name="plain", kind=ClusterKind.SLURM, gpus_per_node=4)
RACK = ClusterSpec(
    name="rack",
    kind=ClusterKind.SSH,
    hosts=tuple(Host(name=f"n{i}", slots=4) for i in (3, 1, 2)),
)
LOCAL = ClusterSpec(name="local", kind=ClusterKind.LOCAL)


def job(framework: str = "torchrun", **values: Any) -> JobSpec:
    """Return a job on two nodes."""
    return JobSpec(**{"framework": framework, "script": "train.py", "nodes": 2, **values})


def cluster(base: ClusterSpec, **values: Any) -> ClusterSpec:
    """Return `base` with some keys changed."""
    names = base.__dataclass_fields__
    return ClusterSpec(**{**{name: getattr(base, name) for name in names}, **values})


def container(runtime: ContainerRuntime) -> JobSpec:
    """Return a job inside an image."""
    return job(image="registry.example/team/torch:2", container=runtime, env={"A": "b c"})


CASES: dict[str, tuple[JobSpec, ClusterSpec]] = {
    "torchrun-slurm": (job(args=NASTY_ARGS, env=NASTY, secrets=("WANDB_API_KEY",)), SLURM),
    "torchrun-elastic": (job(nodes=2, max_nodes=4), PLAIN),
    "torchrun-site": (
        job(sbatch_options={"mail-user": "ada@example.org", "exclusive": ""}, requeue=2),
        cluster(
            PLAIN,
            gpu_request=GpuRequest.GRES,
            gpu_type="h100",
            modules=("cuda/12.8", "nccl"),
            setup=("source ~/venv/bin/activate", "ulimit -c 0"),
            extra_directives={"comment": 'team "x"', "reservation": "r1"},
            skip_directives=("open-mode",),
            srun_args=("--cpu-bind=none",),
            port_range=(21000, 21999),
        ),
    ),
    "torchrun-local": (job(gpus_per_node=(2,)), LOCAL),
    "torchrun-ssh": (job(exclude=("n1",)), RACK),
    "torchrun-spares": (job(spares=1, requeue=1), PLAIN),
    "torchrun-restarts": (job(restarts=2), PLAIN),
    "torchrun-order": (job(), PLAIN),
    "torchrun-order-spares": (
        job(spares=1, requeue=1),
        cluster(PLAIN, network_interface="ib0"),
    ),
    "torchrun-cpu": (job(), cluster(PLAIN, gpu_request=GpuRequest.NONE)),
    "torchrun-docker": (
        container(ContainerRuntime.DOCKER),
        cluster(PLAIN, mounts=("/data:/data:ro",)),
    ),
    "torchrun-apptainer": (container(ContainerRuntime.APPTAINER), PLAIN),
    "torchrun-enroot": (container(ContainerRuntime.ENROOT), PLAIN),
    "torchrun-pyxis": (container(ContainerRuntime.PYXIS), PLAIN),
    "accelerate-slurm": (job("accelerate", args=NASTY_ARGS), PLAIN),
    "accelerate-fsdp": (job("accelerate", launcher_options={"preset": "fsdp"}), RACK),
    "accelerate-zero3": (
        job("accelerate", launcher_options={"preset": "zero3", "gradient_clipping": "0.5"}),
        PLAIN,
    ),
    "accelerate-own": (job("accelerate", launcher_options={"config_file": "my own.yaml"}), PLAIN),
    "env-slurm": (job("env", args=NASTY_ARGS, processes=7), PLAIN),
    "env-components": (
        job(
            "env",
            components=(
                Component(nodes=1, gpus_per_node=3, cluster={"gpu_request": GpuRequest.NONE}),
                Component(nodes=2, cluster={"partition": "a100"}, sbatch_options={"nice": "5"}),
            ),
        ),
        PLAIN,
    ),
    "mpi-components": (
        job(
            "mpi",
            components=(Component(nodes=1, image="cpu.sif"), Component(nodes=1)),
            image="gpu.sif",
            container=ContainerRuntime.APPTAINER,
        ),
        cluster(PLAIN, memory="900G"),
    ),
    "env-ssh": (job("env"), RACK),
    "mpi-slurm": (job("mpi", args=NASTY_ARGS, processes=7), PLAIN),
    "mpi-ssh": (job("mpi", launcher_options={"flavour": "mpich", "map-by": "numa"}), RACK),
    "mpi-srun": (
        job("mpi", script="./a.out", launcher_options={"launcher": "srun", "pmi": "pmix_v4"}),
        cluster(PLAIN, srun_args=("--cpu-bind=none",)),
    ),
    "spark-slurm": (
        job("spark", args=NASTY_ARGS, launcher_options={"executor.memory": "8g"}),
        PLAIN,
    ),
    "spark-ssh": (job("spark"), RACK),
    "tensorflow-slurm": (job("tensorflow", args=NASTY_ARGS), PLAIN),
    "tensorflow-ps": (
        job("tensorflow", processes=7, launcher_options={"per": "slot", "ps": "2"}),
        RACK,
    ),
    "ray-slurm": (job("ray", args=NASTY_ARGS), PLAIN),
    "ray-elastic": (
        job("ray", max_nodes=3, launcher_options={"num-cpus": "8", "resources": '{"a": 1}'}),
        RACK,
    ),
    "deepspeed-slurm": (
        job(
            "deepspeed",
            args=("--deepspeed_config", "ds.json"),
            launcher_options={"log_level": "error"},
        ),
        PLAIN,
    ),
    "deepspeed-preset": (job("deepspeed", deepspeed_preset="zero3-offload"), RACK),
    "deepspeed-no-local-rank": (
        job("deepspeed", launcher_options={"no_local_rank": ""}),
        cluster(PLAIN, gpu_request=GpuRequest.GPUS_PER_TASK),
    ),
    "deepspeed-filter": (
        job("deepspeed", nodes=3, launcher_options={"include": "w1@w2:1,3"}),
        cluster(PLAIN, srun_args=("--cpu-bind=none",)),
    ),
    "deepspeed-filter-interface": (
        job("deepspeed", nodes=3, launcher_options={"exclude": "w0"}),
        cluster(PLAIN, network_interface="ib0"),
    ),
    "horovod-slurm": (job("horovod", processes=6), PLAIN),
    "horovod-uneven": (
        job("horovod", gpus_per_node=(4, 2)),
        cluster(PLAIN, gpu_request=GpuRequest.NONE),
    ),
    "horovod-mpi": (job("horovod"), cluster(PLAIN, horovod_controller=HorovodController.MPI)),
}

ORDER = NodeOrder(switches=(("w1", "w3"), ("w0", "w2")), together=2, places=(1, 0))
"""What `--topology` adds to the plan of those cases that are called so."""


def plan(case: str) -> LaunchPlan:
    """Return the plan of a case."""
    planned = make_plan(*CASES[case], workdir=WORKDIR)
    return dataclasses.replace(planned, order=ORDER if "-order" in case else None)
