"""The keys of `clusterkit.yaml`: their types, and their only documentation.

The reference page and `clusterkit explain KEY` are made from the descriptions here. Defaults are
those of `model.ClusterSpec`; a model here holds what one file says, so every key may be missing.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from clusterkit.config import fields
from clusterkit.core.model import (
    ClusterKind,
    ContainerRuntime,
    GpuRequest,
    HorovodController,
    ShareRuns,
)

SLURM = (ClusterKind.SLURM,)
SSH = (ClusterKind.SSH,)
ALL = tuple(ClusterKind)


def _key(description: str, example: str, *, kinds: tuple[ClusterKind, ...] = ALL) -> Any:
    return Field(
        default=None,
        description=description,
        examples=[example],
        json_schema_extra={"kinds": [kind.value for kind in kinds]},
    )


class ClusterModel(BaseModel):
    """One entry of `clusters:` as a file gives it."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    kind: ClusterKind | None = _key(
        "How the nodes are reached: `slurm` hands jobs to a Slurm controller, `ssh` starts them "
        "on bare-metal hosts, `local` runs every node as processes of this machine.",
        "slurm",
    )
    partition: fields.Text | None = _key(
        "Partition that jobs are sent to (sbatch --partition). Without it, Slurm takes the "
        "partition that `sinfo` marks with a star.",
        "gpu",
        kinds=SLURM,
    )
    account: fields.Text | None = _key(
        "Account that jobs are charged to (sbatch --account). Yours are listed by "
        "`sacctmgr show associations user=$USER`.",
        "ml-research",
        kinds=SLURM,
    )
    qos: fields.Text | None = _key(
        "Quality of service of the jobs (sbatch --qos).", "normal", kinds=SLURM
    )
    constraint: fields.Text | None = _key(
        "Node features that a job needs (sbatch --constraint).", "a100&ib", kinds=SLURM
    )
    gpus_per_node: fields.Count | None = _key(
        "Slots that a job gets on each node unless --gpus-per-node says otherwise: one process, "
        "and one GPU, each. Without it, 1. On CPU-only nodes a slot is a CPU process: write "
        "`gpu_request: none` beside it.",
        "8",
    )
    gpu_type: fields.Text | None = _key(
        "Type of GPU to ask for, as in `gres/gpu:TYPE`. Only for partitions that mix types.",
        "a100",
        kinds=SLURM,
    )
    gpu_request: GpuRequest | None = _key(
        "Option that asks Slurm for GPUs; sites differ and refuse the others. `gpus-per-node` "
        "gives --gpus-per-node=N, `gres` gives --gres=gpu:N, `gpus-per-task` gives "
        "--gpus-per-task=N with the one task of a node, `none` asks for nothing (whole nodes, or "
        "CPU jobs).",
        "gres",
        kinds=SLURM,
    )
    cpus_per_node: fields.Count | None = _key(
        "CPUs that a job gets on each node (sbatch --cpus-per-task, with one task a node).",
        "64",
        kinds=SLURM,
    )
    memory: fields.Memory | None = _key(
        "Memory that a job gets on each node (sbatch --mem): a whole number with K, M, G or T; "
        "0 is all there is.",
        "512G",
        kinds=SLURM,
    )
    time: fields.TimeLimit | None = _key(
        "Time limit of a job that sets none: minutes, MM:SS, HH:MM:SS, D-HH[:MM[:SS]] or "
        "UNLIMITED. A job that reaches it ends in state `timeout`.",
        "1-00:00:00",
    )
    extra_directives: fields.Options | None = _key(
        "More options for sbatch, by their long names without dashes; one without a value stays "
        "empty. `--set sbatch.KEY=VALUE` beats them.",
        "{mail-type: FAIL, exclusive: }",
        kinds=SLURM,
    )
    skip_directives: fields.OptionNames | None = _key(
        "Options that must not appear in the sbatch script, by their long names without dashes: "
        "for sites that refuse or set them.",
        "[mem, gpus-per-node]",
        kinds=SLURM,
    )
    srun_args: fields.Words | None = _key(
        "More options for the `srun` that starts the node scripts: one text, or a list of words.",
        "--mpi=pmix --cpu-bind=none",
        kinds=SLURM,
    )
    env: fields.Environment | None = _key(
        "Environment variables of every process. Values reach the processes unchanged: nothing "
        "in them is expanded. User and project file are merged name by name; `--env` beats both.",
        "{NCCL_SOCKET_IFNAME: ib0}",
    )
    secrets: fields.VariableNames | None = _key(
        "Names of variables of your shell whose values the job gets without their appearing in "
        "any script, log or process list: they travel in one file that only you can read.",
        "[WANDB_API_KEY, HF_TOKEN]",
    )
    preflight: Literal["auto", "full", "off"] | None = _key(
        "What `submit` checks first, unless --preflight says otherwise. `auto` lints the job's "
        "variables and asks the nodes of multi-node GPU jobs how they are; `full` asks always, "
        "measures the network, and lets each node check itself before it starts; `off` does "
        "nothing.",
        "full",
    )
    allowed_env: fields.Texts | None = _key(
        "Variables that the site vouches for, by name or pattern (`NCCL_FOO*`): `lint-env` and "
        "preflight find nothing wrong with them.",
        "[NCCL_NET_FORCE_FLUSH]",
    )
    modules: fields.Texts | None = _key(
        "Environment modules to load on every node before the job (`module load`), in order.",
        "[cuda/12.8, nccl]",
    )
    setup: fields.ShellLines | None = _key(
        "Shell lines that run on every node before the training command, after `modules`.",
        "[source /opt/venv/bin/activate]",
    )
    python: fields.Text | None = _key(
        "Python interpreter of the training environment, as the nodes know it. Without it, the "
        "`python3` that is first on PATH once `modules` and `setup` have run.",
        "/shared/venvs/train/bin/python",
    )
    network_interface: fields.Text | None = _key(
        "Network interface for the traffic between nodes: sets NCCL_SOCKET_IFNAME and "
        "GLOO_SOCKET_IFNAME. Without it, the libraries choose.",
        "ib0",
    )
    port_range: fields.PortRange | None = _key(
        "Ports that jobs may listen on, FIRST-LAST. Keep it outside the range that the kernel "
        "hands out by itself (net.ipv4.ip_local_port_range), or a port can be taken at random.",
        "20000-29999",
    )
    horovod_controller: HorovodController | None = _key(
        "What the site's Horovod was built on (`horovodrun --check-build`): `gloo` needs "
        "nothing else, `mpi` starts its ranks through srun or mpirun.",
        "mpi",
    )
    container_runtime: ContainerRuntime | None = _key(
        "What starts a job inside its image: `docker`, `compose` (a Docker Compose file for each "
        "host; not under Slurm), `apptainer`, `enroot`, or `pyxis` (the srun plug-in, Slurm only). "
        "Without it, jobs run without a container.",
        "apptainer",
    )
    image: fields.Text | None = _key(
        "Image of jobs that name none, as the container runtime spells it.",
        "/shared/images/torch.sif",
    )
    mounts: fields.Mounts | None = _key(
        "Folders that a container sees, SOURCE:TARGET or SOURCE:TARGET:ro.", "[/data:/data:ro]"
    )
    shm_size: fields.ShmSize | None = _key(
        "Size of /dev/shm inside a Docker container; data loaders and NCCL fill the 64 MB that "
        "Docker gives by itself. `host` shares that of the node (--ipc=host).",
        "32g",
    )
    run_dir: fields.Text | None = _key(
        "Folder that holds one run folder for each job; every node must see it under this path "
        "unless `shared_filesystem` is false. A relative path counts from the file it stands in.",
        "/scratch/me/runs",
    )
    share_runs: ShareRuns | None = _key(
        "Who may look at your jobs beside you and root: `none`, the `group` of the run folder, or "
        "`all`. It opens logs and states of jobs submitted from then on, for reading; scripts, "
        "plans, pickles, secrets and results stay yours alone, and so does writing.",
        "group",
    )
    templates: fields.Text | None = _key(
        "Folder with templates of your own; a file there shadows the one of the same name that "
        "clusterkit ships. They are code that runs as you. Relative to the file it stands in.",
        "site-templates",
    )
    hosts: fields.Hosts | None = _key(
        "Hosts in rank order: a hostlist or a YAML list of names and hostlists.",
        "n[1-4]",
        kinds=SSH,
    )
    hostfile: fields.Text | None = _key(
        "File that lists the hosts instead of `hosts`, in any hostfile format (`host slots=N`). "
        "A relative path counts from the file it stands in.",
        "hostfiles/rack",
        kinds=SSH,
    )
    user: fields.Text | None = _key(
        "User name to log in with; else ssh's own configuration decides.", "train", kinds=SSH
    )
    port: fields.Port | None = _key(
        "Port of the SSH servers; else ssh's own configuration decides.", "2222", kinds=SSH
    )
    identity_file: fields.Text | None = _key(
        "Private key to log in with; else the agent and ssh's own configuration decide.",
        "~/.ssh/id_cluster",
        kinds=SSH,
    )
    jump_host: fields.Text | None = _key(
        "Host through which the others are reached (ssh -J): [USER@]HOST[:PORT].",
        "login.example.org",
        kinds=SSH,
    )
    host_keys: Literal["known", "accept-new"] | None = _key(
        "`known` refuses a host whose key is not in known_hosts; `accept-new` adds the key of a "
        "host never seen before. A changed key is always refused.",
        "accept-new",
        kinds=SSH,
    )
    shared_filesystem: bool | None = _key(
        "Whether the hosts share the folder of the job; if not, its files are copied to each.",
        "false",
        kinds=SSH,
    )
    venv: fields.Text | None = _key(
        "Folder of the virtual environment that `clusterkit nodes prepare` makes on every node. "
        "Jobs run in it where the hosts share no file system.",
        "/local/clusterkit-venv",
        kinds=SSH,
    )


class ConfigModel(BaseModel):
    """A whole `clusterkit.yaml`; top-level keys that begin with `x-` are left to you."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    default_cluster: fields.Text | None = Field(
        default=None,
        description="Cluster that commands use unless --cluster says otherwise; without it, "
        "`local`.",
        examples=["a100"],
    )
    clusters: dict[str, ClusterModel | None] | None = Field(
        default=None,
        description="The clusters by name; an entry of the name `local` changes the one that is "
        "always there. User and project file are merged key by key.",
        examples=["{a100: {kind: slurm, partition: gpu}}"],
    )
