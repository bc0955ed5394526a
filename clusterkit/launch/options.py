"""The one table of job options: flags, Python arguments, keys of job files, and their reference.

Each row has its name, its type in Python, its default, and an `Option`. From it are made the flags
of `submit`, `render` and `bench` (`cli/frame/job_options.py`), the arguments of `clusterkit.submit`
and `render` (`api/arguments.py`), the schema of job files (`launch/jobfile.py`) and the reference.
`JobSpec` is what they become; an option that needs no parsing is only a field there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache
from pathlib import PurePath
from typing import Annotated, Any

from clusterkit.core.model import SYNC_LIMIT_MIB, ContainerRuntime, RequeueOn, ScriptKind
from clusterkit.launch.frameworks import builtin_names
from clusterkit.launch.option_rows import Option, Place, Row, rows_of


# Two lines a row: name, type and default round what the help and the reference say.
# fmt: off
@dataclass(frozen=True, slots=True)
class JobOptions:
    """A job as flags and arguments say it; they beat a job file."""

    script: Annotated[Place | None, Option("SCRIPT", "Training script, or program.", "train.py",
        argument=True, in_file="A relative path counts from the folder you submit from.")] = None
    args: Annotated[Sequence[object], Option("ARGS...", "Its arguments.", "--lr 3e-4 --epochs 2",
        "Words", argument=True, in_file="One text, split like a shell line but with nothing "
        "expanded, or a list of words.")] = ()
    _: KW_ONLY
    module: Annotated[bool, Option("", "SCRIPT is a module, to be started as by `python -m`.",
        "true", "Flag", short="-m")] = False
    cluster: Annotated[str | None, Option("NAME", "Cluster of clusterkit.yaml, or local.",
        "a100", short="-c", variable=True)] = None
    framework: Annotated[str | None, Option("NAME",
        "What starts the processes: {FRAMEWORKS} (`clusterkit explain frameworks`).",
        "torchrun", short="-f", variable=True)] = None
    nodes: Annotated[int | str | None, Option("N",
        "Number of nodes, or MIN:MAX for an elastic job.",
        "4", "NodeCount", short="-n", variable=True)] = None
    gpus_per_node: Annotated[int | Sequence[int] | None, Option("G",
        "Slots of each node: GPUs, or CPU processes where there are none.",
        "8", "Slots", short="-g", in_file="One number, or one per node.")] = None
    component: Annotated[Sequence[str | Mapping[str, object]], Option("K=V,...",
        "Component of a heterogeneous Slurm job, such as nodes=2,partition=gpu; repeatable, "
        "and the first node of the first one is the head.",
        "[{nodes: 1, partition: cpu}, {nodes: 2, partition: gpu}]", "Components", in_file="Keys: "
        "nodes, gpus_per_node, image, sbatch.KEY, and of the cluster partition, account, qos, "
        "constraint, gpu_type, gpu_request, cpus_per_node, memory.")] = ()
    processes: Annotated[int | None, Option("N",
        "Ranks in all, where fewer than the slots.", "6")] = None
    time: Annotated[str | None, Option("TIME", "Time limit, as Slurm's: 30 is minutes.",
        "4:00:00", "TimeLimit", short="-t")] = None
    notice: Annotated[int | None, Option("S", "Seconds before the time limit at which SIGUSR2 "
        "comes: 90, or a quarter of a short limit.", "300")] = None
    name: Annotated[str | None, Option("NAME", "Name of the job.", "llama-7b")] = None
    env: Annotated[Mapping[str, object], Option("K=V", "Variable for every rank; repeatable.",
        "{NCCL_DEBUG: WARN}", "Environment", short="-e")] = field(default_factory=dict)
    secret: Annotated[Sequence[str], Option("NAME",
        "Variable of your shell, passed on in a private file that goes with the job; repeatable.",
        "[WANDB_API_KEY]", "VariableNames")] = ()
    exclude: Annotated[str | None, Option("LIST",
        "Hostlist of nodes not to use, beside those of `exclude:` in the cluster.",
        "n[3,7]", "Hostlist")] = None
    sync: Annotated[Place | None, Option("DIR",
        "Folder to copy to nodes that share no file system with this machine.", ".")] = None
    sync_limit: Annotated[int | None, Option("MIB",
        "How much may be copied to each node, and back: MiB, 500 by default.", "500")] = None
    set: Annotated[Mapping[str, object], Option("K=V",
        "sbatch.KEY=VALUE or FRAMEWORK.KEY=VALUE; repeatable. torchrun.tee=3 labels each line of "
        "output with its rank, for logs --rank.",
        "{sbatch.nice: 100}", "Settings")] = field(default_factory=dict)
    ds_preset: Annotated[str | None, Option("NAME",
        "DeepSpeed configuration: zero1, zero2, zero2-fp16, zero2-offload, zero3, zero3-auto, "
        "zero3-nvme, zero3-offload, zeropp.",
        "zero3")] = None
    ps: Annotated[int | None, Option("K",
        "Parameter servers among the processes; short for --set tensorflow.ps=K.",
        "1", "CountOrZero")] = None
    requeue: Annotated[int | None, Option("N",
        "Maximum restarts after the time limit, preemption, or a lost or faulty node.",
        "3", "CountOrZero")] = None
    restarts: Annotated[int | None, Option("N",
        "Maximum restarts after a lost or faulty node (see --requeue-on), without a queue, on "
        "the nodes that the job has.",
        "3", "CountOrZero")] = None
    requeue_on: Annotated[str | None, Option("hardware|failure",
        "Failures of the script to restart after: 'hardware', those of hardware (default), or "
        "'failure', any.",
        "failure", "Failures")] = None
    spares: Annotated[int | None, Option("K",
        "Spare nodes, which replace failed ones when the job restarts.",
        "1", "CountOrZero")] = None
    on_end: Annotated[Sequence[str], Option("WAY", "Whom to tell that the job has ended: 'mail "
        "ADDRESS', 'slack NAME', 'webhook NAME' or 'run COMMAND'; repeatable.",
        "[mail me@example.org]", "Notifications")] = ()
    on_failure: Annotated[Sequence[str], Option("WAY", "The same, only of a job that failed; "
        "repeatable.", "[slack ~/.slack-url]", "Notifications")] = ()
    on_hang: Annotated[str | Sequence[str], Option("ACTION|WAY",
        "When the job makes no progress: 'report' it (default), 'cancel' or 'restart' the job; or "
        "whom to tell, as for --on-end; repeatable.", "[restart, slack ~/.slack-url]",
        "Hanging")] = ()
    hang_after: Annotated[int | None, Option("S", "Seconds without a step that are not a hang yet: "
        "300, or twice the longest so far; "
        "up to the fourth step three times as many, unless all processes are idle.",
        "1800")] = None
    image: Annotated[str | None, Option("NAME", "Image to run in.",
        "clusterkit/torch:cuda", panel="Container")] = None
    container: Annotated[str | None, Option("RUNTIME",
        "docker, compose, apptainer, enroot or pyxis.",
        "apptainer", "Runtime", panel="Container")] = None
    mount: Annotated[Sequence[str], Option("SOURCE:TARGET",
        "What the container sees, SOURCE:TARGET[:ro]; repeatable.",
        "[/data:/data:ro]", "Mounts", panel="Container")] = ()
    tp: Annotated[int | None, Option("T", "Tensor-parallel ranks: TP_SIZE.",
        "8", panel="Layout")] = None
    pp: Annotated[int | None, Option("P", "Pipeline stages: PP_SIZE.", "2", panel="Layout")] = None
    cp: Annotated[int | None, Option("C", "Context-parallel ranks: CP_SIZE.",
        "2", panel="Layout")] = None
    ep: Annotated[int | None, Option("E", "Expert-parallel ranks: EP_SIZE.",
        "4", panel="Layout")] = None
    topology: Annotated[Place | None, Option("FILE|DIR",
        "Number nodes by it: what `scontrol show topology` prints, or what `preflight --network "
        "--save` kept.", "topology.txt", panel="Layout")] = None
    job: Annotated[Place | None, Option("FILE",
        "YAML file with these flags as keys; flags win over it.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayOptions:
    """An array of jobs, which the command line and job files can ask for."""

    array: Annotated[str | None, Option("SPEC|FILE",
        "One job for each: 'lr=1e-3,1e-4;seed=0-3%2' (2 at once), or a YAML, JSON or CSV file; "
        "{lr} stands in ARGS, --env or --name.",
        "lr=1e-3,1e-4;seed=0-3", "Array", short="-a", panel="Array")] = None
    at_once: Annotated[int | None, Option("K", "Maximum concurrent jobs of the array.",
        "2", panel="Array")] = None
    elements: Annotated[str | None, Option("LIST",
        "Only these jobs of the array, by number: 0,4-7.",
        "0,4-7", "Elements", panel="Array")] = None


@dataclass(frozen=True, slots=True)
class SubmitOptions(JobOptions):
    """A job, and how it is to be submitted."""

    _: KW_ONLY
    preflight: Annotated[str | None, Option("auto|full|off",
        "What to check first: auto (the cluster's default), full or off. `clusterkit explain "
        "preflight` says more.", "full", "Preflight", panel=None)] = None
    exclude_unfit: Annotated[bool, Option("",
        "Go on without unhealthy nodes, if enough are left.", panel=None)] = False
    snapshot: Annotated[bool, Option("", "Run from a copy of the working tree as it is now: what "
        "git would not ignore, up to --sync-limit.", panel=None)] = False
    force: Annotated[bool, Option("", "Submit whatever preflight finds.", panel=None)] = False
    after: Annotated[str | Sequence[str], Option("JOB[:ok|any|fail]",
        "Start when that job, or all of an array, succeeded (ok), failed (fail) or ended in any "
        "way; repeatable.", "[latest]", "Texts", panel=None)] = ()
# fmt: on


@cache
def job_options() -> Mapping[str, Row]:
    """Return every row of a job, in the order of the help."""
    rows = {**rows_of(JobOptions), **rows_of(ArrayOptions), **rows_of(SubmitOptions)}
    row, (*names, last) = rows["framework"], builtin_names()
    listed = row.option.help.replace("{FRAMEWORKS}", f"{', '.join(names)} or {last}")
    rows["framework"] = replace(row, option=replace(row.option, help=listed))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """Nodes of a heterogeneous job; what it does not say, the job and its cluster do."""

    nodes: int
    gpus_per_node: int | None = None
    image: str | None = None
    cluster: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the cluster that are others for it."""
    sbatch_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What the user asks for: flags and job file merged, nothing decided yet."""

    framework: str
    script: str
    script_kind: ScriptKind = ScriptKind.PYTHON
    args: tuple[str, ...] = ()
    name: str | None = None
    nodes: int = 1
    max_nodes: int | None = None
    """Upper end of `--nodes MIN:MAX`; None for a fixed number of nodes."""
    gpus_per_node: tuple[int, ...] = ()
    """Slots of each node: empty for the cluster's own, one for all nodes alike, or one per node."""
    components: tuple[Component, ...] = ()
    """Two or more for a heterogeneous job, which has the nodes of all of them, in order."""
    processes: int | None = None
    """Total number of ranks where it is less than all slots; None for one per slot."""
    time: str | None = None
    notice: int | None = None
    """Seconds before the time limit at which its processes get SIGUSR2; None for our default."""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    sbatch_options: Mapping[str, str] = field(default_factory=dict)
    """`--set sbatch.KEY=VALUE`: directives that beat everything else."""
    launcher_options: Mapping[str, str] = field(default_factory=dict)
    """`--set FRAMEWORK.KEY=VALUE`: options handed to the framework's own launcher."""
    image: str | None = None
    container: ContainerRuntime | None = None
    mounts: tuple[str, ...] = ()
    """What the container sees beside the cluster's mounts, `SOURCE:TARGET[:ro]`."""
    requeue: int = 0
    restarts: int = 0
    requeue_on: str = RequeueOn.HARDWARE
    on_hang: str | Sequence[str] = ()
    """What to do about it, whom to tell, or both; for what is not said, the cluster's own."""
    hang_after: int | None = None
    """Seconds without progress that are no hang yet; None for the cluster's own."""
    spares: int = 0
    """How many more nodes to have at hand, for those that fail."""
    deepspeed_preset: str | None = None
    sync: str | None = None
    """The folder to send to nodes that share no file system with this machine; an absolute path."""
    sync_limit_mib: int = SYNC_LIMIT_MIB
    on_end: tuple[str, ...] = ()
    on_failure: tuple[str, ...] = ()

    @property
    def name_of_script(self) -> str:
        """What the job is called where nobody names it."""
        module = self.script_kind is ScriptKind.MODULE
        return self.script.rpartition(".")[2] if module else PurePath(self.script).stem
