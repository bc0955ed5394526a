"""The vocabulary as frozen values: clusters, jobs, plans, states. Standard library only.

The words are those of the configuration file, of the flags and of the JSON output; see
docs/vocabulary.md. Nothing here reads a file, runs a command or knows a framework.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Self

from clusterkit.core.bounds import ExitCode, Matching, Moment, NodeName, Rank, Seconds, Within

PORT_STRIDE = 10
"""Ports that belong to one job; the next job gets the next ten."""


NO_PLATFORM = "off"
"""The value of `platform` where the cloud of a cluster is to be left alone."""
HANG_AFTER_S = 300
"""How long a job may make no progress at least, unless it says otherwise: two evaluations of two
minutes each, and some more."""
SYNC_LIMIT_MIB = 500
"""How much `--sync` sends to each node unless it is allowed more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traits:
    """What is special about a kind of cluster.

    What a kind needs beside this is an executor (`executors/KIND/executor.py`) and, where its nodes
    are reached in a new way, a transport (`transport/base.py`).
    """

    ways: tuple[str, ...]
    scheduled: bool = False
    shares_machine: bool = False
    lists_hosts: bool = False


class ScriptKind(StrEnum):
    """What a job runs on each rank."""

    PYTHON = "python"
    """A file that Python reads."""
    MODULE = "module"
    """A module of Python, by its dotted name."""
    SHELL = "shell"
    """A shell script that may not be executed."""
    PROGRAM = "program"
    """A file that is executed."""
    COMMAND = "command"
    """A program that the nodes find on their PATH."""

    @property
    def is_python(self) -> bool:
        """Whether Python runs it."""
        return self in {ScriptKind.PYTHON, ScriptKind.MODULE}

    @property
    def is_file(self) -> bool:
        """Whether it is the path of a file."""
        return self not in {ScriptKind.MODULE, ScriptKind.COMMAND}


class ClusterKind(StrEnum):
    """How the nodes of a cluster are reached."""

    LOCAL = "local"
    SLURM = "slurm"
    SSH = "ssh"

    @property
    def ways(self) -> tuple[str, ...]:
        """The transports that reach the nodes of a job, the usual one first."""
        return _TRAITS[self].ways

    @property
    def scheduled(self) -> bool:
        """Whether Slurm queues, starts, restarts and ends jobs, and speaks of their states."""
        return _TRAITS[self].scheduled

    @property
    def shares_machine(self) -> bool:
        """Whether all nodes are this machine."""
        return _TRAITS[self].shares_machine

    @property
    def lists_hosts(self) -> bool:
        """Whether nodes are the hosts of the configuration, on which clients start jobs by ssh."""
        return _TRAITS[self].lists_hosts


_TRAITS = {
    ClusterKind.LOCAL: _Traits(ways=("local",), shares_machine=True),
    ClusterKind.SLURM: _Traits(ways=("srun", "ssh"), scheduled=True),
    ClusterKind.SSH: _Traits(ways=("ssh",), lists_hosts=True),
}


class GpuRequest(StrEnum):
    """Which option asks Slurm for GPUs; sites differ, and refuse the others."""

    GPUS_PER_NODE = "gpus-per-node"
    GRES = "gres"
    GPUS_PER_TASK = "gpus-per-task"
    NONE = "none"


class ContainerRuntime(StrEnum):
    """What starts a framework inside an image."""

    DOCKER = "docker"
    COMPOSE = "compose"
    APPTAINER = "apptainer"
    ENROOT = "enroot"
    PYXIS = "pyxis"


class RequeueOn(StrEnum):
    """Which failures of its command a job starts again after; after lost nodes it does anyway."""

    HARDWARE = "hardware"
    FAILURE = "failure"


class OnHang(StrEnum):
    """What is done about a job that makes no progress any more."""

    REPORT = "report"
    CANCEL = "cancel"
    RESTART = "restart"


class ShareRuns(StrEnum):
    """Who may look at the logs and states of jobs, beside their owner."""

    NONE = "none"
    GROUP = "group"
    ALL = "all"


class HorovodController(StrEnum):
    """What a site's Horovod was built on; it decides how ranks are started under Slurm."""

    GLOO = "gloo"
    MPI = "mpi"


class JobState(StrEnum):
    """State of a job; `unknown` until its own result or the scheduler says otherwise."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    REQUEUED = "requeued"
    UNKNOWN = "unknown"

    @property
    def final(self) -> bool:
        """Whether the job has ended and will not change state again."""
        unended = (JobState.PENDING, JobState.RUNNING, JobState.REQUEUED, JobState.UNKNOWN)
        return self not in unended


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine named in a hostfile or a cluster, with its slots where they are known."""

    name: str
    slots: int | None = None
    max_slots: int | None = None
    user: str | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """One entry of `clusters:`, with every default filled in.

    The meaning of each key is documented once, in `config/schema.py`, from which the reference
    page and `clusterkit explain` are made.
    """

    name: str
    kind: ClusterKind
    platform: str = "auto"
    """What was recognised, where it is one; else as it was given."""
    instance_type: str | None = None
    # Resources
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: tuple[str, ...] = ()
    gpus_per_node: int | None = None
    gpu_type: str | None = None
    gpu_request: GpuRequest = GpuRequest.GPUS_PER_NODE
    cpus_per_node: int | None = None
    memory: str | None = None
    time: str | None = None
    extra_directives: Mapping[str, str] = field(default_factory=dict)
    skip_directives: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()
    # What runs around the training script
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    allowed_env: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    python: str | None = None
    network_interface: str | None = None
    port_range: tuple[int, int] = (20000, 29999)
    horovod_controller: HorovodController = HorovodController.GLOO
    # Containers
    container_runtime: ContainerRuntime | None = None
    image: str | None = None
    mounts: tuple[str, ...] = ()
    shm_size: str = "16g"
    # Where things are kept
    run_dir: str = "~/.clusterkit/runs"
    share_runs: ShareRuns = ShareRuns.NONE
    templates: str | None = None
    # From elsewhere
    login: str | None = None
    # ssh
    hosts: tuple[Host, ...] = ()
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    jump_host: str | None = None
    host_keys: str = "known"
    shared_filesystem: bool = True
    venv: str = "~/.clusterkit/venv"
    # Checks of nodes
    preflight: str = "auto"
    drain_command: tuple[str, ...] = ()
    on_hang: str | tuple[str, ...] = OnHang.REPORT
    """What to do about it, whom to tell, or both (`core/notification.py`)."""
    hang_after: int | None = None
    # What becomes of jobs that use nothing, and what GPUs cost
    idle_limit: int | None = None
    on_idle: str = "warn"
    price: float | None = None
    # Whom to tell of the end of a job
    on_end: tuple[str, ...] = ()
    on_failure: tuple[str, ...] = ()

    @property
    def job_python(self) -> str:
        """Python of the training environment; `~/` is the home of who logs in on the nodes."""
        prepared = self.kind.lists_hosts and not self.shared_filesystem
        return self.python or (f"{self.venv}/bin/python" if prepared else "python3")

    @property
    def plain_srun_args(self) -> tuple[str, ...]:
        """The options of `srun` without the one by which HyperPod runs a step that failed again.

        It takes such a step for the fault of a node, which it replaces.
        """
        return tuple(word for word in self.srun_args if not word.startswith("--auto-resume"))

    def slots_of(self, node: str) -> int | None:
        """Return the slots that a node has; None where only the node knows."""
        known = {host.name: host.slots for host in self.hosts}
        return known.get(node) or self.gpus_per_node


@dataclass(frozen=True, slots=True)
class Ref:
    """A value known only where the job runs; a shell variable in everything rendered."""

    name: str


Word = str | Ref | tuple[str | Ref, ...]
"""One argument or value: literal text, a runtime reference, or both joined."""


class Runtime:
    """The runtime variables that every executor provides on every node (see docs/runtime.md)."""

    JOB_ID = Ref("CK_JOB_ID")
    RESTART_COUNT = Ref("CK_RESTART_COUNT")
    NNODES = Ref("CK_NNODES")
    NODE_RANK = Ref("CK_NODE_RANK")
    NODE_NAME = Ref("CK_NODE_NAME")
    NODES = Ref("CK_NODES")
    """Node names in rank order, separated by single spaces."""
    SLOTS = Ref("CK_SLOTS")
    """Slots of each node in rank order, separated by single spaces."""
    HEAD_ADDR = Ref("CK_HEAD_ADDR")
    PORT = Ref("CK_PORT")
    TMP = Ref("CK_TMP")
    """A folder of this job on this node, removed when the node script ends."""
    RESULTS = Ref("CK_RESULTS")
    """The folder of what is to be kept; unset by hand."""
    RUN = Ref("CK_RUN")
    """The name of the run folder; unset by hand."""
    ARRAY = Ref("CK_ARRAY")
    """The array that the job belongs to; unset where it belongs to none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFilter:
    """Which hosts and slots of its allocation a job uses; applied on the nodes, by their names."""

    option: str
    """What gave it: a name that ends in `.include` or `.exclude`."""
    text: str
    """`HOST[:SLOT[,SLOT]...][@HOST...]`, of correct form."""
    processes: int
    """How many slots it leaves, where the nodes are as planned."""


FILTERED = Ref("CK_INCLUDE")
"""What a `SlotFilter` leaves, as an include filter that names every slot; unset without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCommand:
    """What a framework runs on each node.

    `files` are texts that the node script writes into `CK_TMP` before it starts the command
    (name -> text); `hostfile` asks for `CK_TMP/hostfile` (`host slots=N`, in rank order) as well.
    A node of which `slot_filter` leaves nothing does not run the command, and has no rank.
    """

    argv: tuple[Word, ...]
    env: Mapping[str, Word] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    hostfile: bool = False
    slot_filter: SlotFilter | None = None
    once: bool = False
    """Whether it runs once, on the first node, and reaches the other nodes by itself (MPI)."""
    processes: int | None = None
    """How many processes it starts on all nodes, where that is not one for each slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """How the command of a node is put into an image."""

    runtime: ContainerRuntime
    image: str
    mounts: tuple[str, ...] = ()
    shm_size: str = "16g"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPlan:
    """A folder of this machine that a job finds a copy of on each node."""

    folder: str
    workdir: str
    """Where in it the command starts, as a relative path."""
    limit_mib: int
    """How much may be sent to each node, and brought back from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOrder:
    """How nodes come into rank order: taken switch by switch, then put into places.

    A switch gives its nodes in multiples of `together`; what is left over comes after all of those,
    and then the nodes that are behind no known switch.
    """

    switches: tuple[tuple[str, ...], ...]
    """The nodes behind each switch; switches that are near each other follow each other."""
    together: int
    places: tuple[int, ...]
    """The node rank of the node taken first, second, and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentPlan:
    """What is decided of one component of a heterogeneous job."""

    nodes: int
    slots: int
    """Slots of each of its nodes."""
    cluster: ClusterSpec
    """The cluster as its nodes have it."""
    directives: Mapping[str, str | None]
    image: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Everything decided about a job before it is handed over; the only thing that can be.

    What only an allocation knows (node names on Slurm, the job id, the port) stands in
    `command` as a `Ref` and is resolved on the node. Equal plans render to equal bytes.
    """

    name: str
    framework: str
    cluster: ClusterSpec
    nodes: int
    max_nodes: int | None
    slots: tuple[int, ...]
    """Slots of each node; one entry per node (of `max_nodes` where that is given)."""
    processes: int
    """Total number of ranks when all `nodes` are there."""
    node_names: tuple[str, ...]
    """Names in rank order where they are known beforehand; empty on Slurm."""
    order: NodeOrder | None = None
    """How a Slurm job numbers its nodes; None for Slurm's own order, and where names are known."""
    workdir: str
    script: str
    script_kind: ScriptKind = ScriptKind.PYTHON
    args: tuple[str, ...]
    command: NodeCommand
    one_host_command: NodeCommand
    """The same training on one host inside an image, as a compose file starts it."""
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    directives: Mapping[str, str | None]
    """sbatch options, long names without dashes; None for an option without a value."""
    time_limit_s: int | None
    container: ContainerPlan | None
    components: tuple[ComponentPlan, ...] = ()
    """Of a heterogeneous job of Slurm, in order of rank; `directives` are those of the first."""
    requeue: int
    restarts: int = 0
    requeue_on: RequeueOn = RequeueOn.HARDWARE
    on_hang: OnHang = OnHang.REPORT
    hang_after_s: int = HANG_AFTER_S
    """For how long the job may make no progress at least."""
    spares: int = 0
    """How many nodes there are beyond those that the job uses, for those that fail."""
    spare_names: tuple[str, ...] = ()
    """Their names where they are known beforehand."""
    deepspeed_preset: str | None = None
    sync: SyncPlan | None = None
    on_end: tuple[str, ...] = ()
    """Whom to tell that the job has ended (`core/notification.py`)."""
    on_failure: tuple[str, ...] = ()
    """Whom to tell that it has not ended well."""
    boots: bool = False
    """Whether Slurm may put the job back until its script begins, since a node did not boot."""
    on_hang_tell: tuple[str, ...] = ()
    """Whom to tell that it hangs; empty for `on_failure`, where nothing else is done about it."""

    @property
    def parts(self) -> tuple[Self, ...]:
        """Return a plan for the nodes of each component; a job without any is one part."""
        parts, inside = [], self.container
        for number, one in enumerate(self.components):
            parts.append(
                replace(
                    self,
                    components=(),
                    nodes=one.nodes,
                    slots=(one.slots,) * one.nodes,
                    cluster=one.cluster,
                    directives=one.directives if number else self.directives,
                    container=inside and replace(inside, image=one.image or inside.image),
                )
            )
        return tuple(parts) or (self,)

    @property
    def notice_s(self) -> int:
        """Return how many seconds before its time limit the job's processes get a signal; or 0."""
        match = re.fullmatch(r"(?:[BR]+:)?\w+@(\d+)", self.directives.get("signal") or "")
        return int(match[1]) if match else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedFile:
    """One rendered file: its name inside the output folder, its text, whether it is a script."""

    name: str
    text: str
    executable: bool = False


Reason = Annotated[str, Matching("timeout|cancelled|peer|preempted|terminated")]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """How the command of one node ended."""

    node_rank: Rank
    node: NodeName
    exit_code: ExitCode
    """Exit code as a shell reports it: 128 + N for a command ended by signal N."""
    started_at: Moment
    """Seconds since the epoch."""
    ended_at: Moment
    reason: Reason | None = None
    """Why it ended where that was not the command's own doing: `timeout`, `cancelled`, `peer`,
    `preempted`, or `terminated` by somebody unknown."""
    noticed: bool = False
    """Whether the command was given SIGUSR1 or SIGUSR2: it may have given the job back itself."""
    unfit: str | None = None
    """What the node's own checks found, where they kept the command from being started."""
    fault: str | None = None
    """What they found when the command had failed, or its output says: no fault of the script."""
    drained: str | None = None
    """How the command of the site that takes such a node out has ended."""
    rule: str | None = None
    """The rule of `clusterkit diagnose` that its output fits, where another attempt may follow."""
    step: Annotated[int, Within(0, 1 << 62)] | None = None
    """The last step that its output tells of, then."""
    hung: str | None = None
    """How it was noticed that the job makes no progress, where it was ended for that."""
    lost: str | None = None
    """How the others noticed that the node has gone; then its exit code is theirs to choose."""
    rank: Annotated[int, Within(0, 10_000_000)] | None = None
    """The rank that failed first, where its launcher told; the exit code is the rank's own then."""
    message: str | None = None
    """The text of its exception, where it wrote torchrun's error file."""
    unwritten: str | None = None
    """Why no more than this of its result could be written: the run folder was full, say."""
    ended_before: str | None = None
    """Which rank had ended before that one, with exit code 0: others may have waited for it."""
    tail: tuple[str, ...] = ()
    """The last lines of the output, of that rank where it can be told apart; of a failure only."""
    among: str | None = None
    """All nodes of the attempt as a hostlist where the scheduler ended it; of nodes that lost each
    other, those of which any may be to blame."""
    driver: str | None = None
    """Name and version of the driver of the node's GPUs, where it has some."""

    @property
    def found(self) -> str | None:
        """What the node's own checks found, whenever that was; None where it is healthy."""
        return self.unfit or self.fault


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """State of a job and how it is known."""

    state: JobState
    exit_code: ExitCode | None = None
    reason: str | None = None
    nodes: tuple[NodeName, ...] = ()
    started_at: Moment | None = None
    """When the latest attempt began, in seconds since the epoch."""
    ended_at: Moment | None = None
    """When the last of its nodes ended, of a job that is over."""
    expected_at: Moment | None = None
    """When the scheduler expects to start a job that is pending."""
    time_limit_s: Seconds | None = None
    """How long the scheduler lets it run, also where its partition set the limit."""
