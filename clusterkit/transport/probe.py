"""A probe: a shell snippet that runs on a node, and a pure parser of what it prints.

Snippets are POSIX sh, run under `LC_ALL=C` and a timeout of their own, and change nothing. One
that exits with `NOT_APPLICABLE` says that the machine does not have the part in question; what it
printed is the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from clusterkit.core import untrusted
from clusterkit.core.findings import Verdict
from clusterkit.core.text import harmless

NOT_APPLICABLE = 77
"""Exit code of a snippet on a machine without the part that it looks at (as in automake)."""

_TIMED_OUT = frozenset({124, 137})
_NOT_FOUND = 127
_LONGEST_LINE = 1 << 14
"""Characters; frames have less, and what Slurm says of a node has."""
_LONGEST = 1 << 16
"""Characters in which a first line is looked for."""

T_co = TypeVar("T_co", covariant=True)


Unparsed = untrusted.Unparsed
"""Raised by a parser: the output is not what it knows, and it does not guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightJob:
    """What probes and checks may know of the job; a bundle keeps it, so replays judge the same."""

    hosts: tuple[str, ...]
    """Nodes in rank order; the first is the head."""
    nodes: int | None = None
    """Of which it gets so many; None for all."""
    kind: str = "ssh"
    """Kind of the cluster: local, slurm or ssh."""
    framework: str | None = None
    python: str = "python3"
    """The job's own interpreter."""
    python_here: str | None = None
    """The one that asks, where the nodes see it too and it has the package of the framework."""
    python_is_set_up: bool = False
    """Whether modules or setup lines of the cluster may give it packages that a plain shell has
    not."""
    mpirun: tuple[str, ...] = ()
    """Programs of which each node needs one; none where no mpirun starts the ranks."""
    gpus_per_node: int | None = None
    """Slots the job wants on each node; None where it is not known."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """Slots of the nodes for which a hostfile, the cluster or the allocation says them."""
    uses_gpus: bool | None = None
    """False for a CPU job; None where it is not known."""
    gpu_use: str | None = None
    """What its script does in any case that no build of torch for CPUs can."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the job and its site set; secrets are not among them."""
    paths: tuple[str, ...] = ()
    """Folders that have to be the same on all nodes: run folder, working directory, data."""
    marker: str | None = None
    """A file in `paths[0]`, written for this preflight, that every node should see."""
    port: int | None = None
    """Rendezvous port on the head."""
    peer_ssh: bool = False
    """Whether nodes have to log in to each other, as for mpirun by hand; no job of ours does it."""
    network_interface: str | None = None
    container_runtime: str | None = None
    image: str | None = None
    image_digest: str | None = None
    """Of the image in the Docker of the machine that asks; None where it has none."""
    mounts: tuple[str, ...] = ()
    """What its image gets of a node, as SOURCE:TARGET[:ro]."""
    rdma_devices: int | None = None
    """RDMA devices that each node has by its instance type; None where it is not known."""
    rdma_gbps: float | None = None
    """Rate of each of them, likewise."""
    instance_gpus: int | None = None
    """GPUs of each node, likewise; a job may want fewer."""
    net_plugin: str | None = None
    """The library of NCCL's plug-in for the fabric of the cluster's platform."""
    has_fabric: bool = False
    """Whether its nodes have a fast fabric for certain, by platform and instance type."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that it needs on every node by path, and what names each (`NCCL_TOPO_FILE`)."""
    kept_together: bool = False
    """Whether Slurm was told to choose nodes that are near each other (--switches, --segment)."""
    asks_cloud: bool = True
    """Whether nodes may ask the metadata server of their cloud (`platform: off`)."""
    allowed_names: tuple[str, ...] = ()
    """Variables that the site vouches for; the lint leaves them alone (globs)."""
    asked_by: str | None = None
    """Version of the clusterkit that asks; None where it is not known."""

    @property
    def spans_nodes(self) -> bool:
        """Whether it has several nodes, of which one that checks itself sees no other."""
        return (self.nodes or len(self.hosts)) > 1

    def requests(self, variable: str) -> bool:
        """Return whether a variable of the job or its site asks for what needs that."""
        return self.env.get(variable) == "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a probe printed on one node."""

    stdout: str
    stderr: str = ""
    exit_code: int | None = 0
    """None where it never ended: cut off, or still running when time was up."""
    seconds: float = 0.0


class ReachProblem(StrEnum):
    """Why a node could not be asked."""

    NAME = "name"
    """Its name does not resolve."""
    TIMEOUT = "timeout"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    """No route, or a connection that breaks."""
    AUTH = "auth"
    HOST_KEY_UNKNOWN = "host-key-unknown"
    HOST_KEY_CHANGED = "host-key-changed"
    SHELL = "shell"
    """A session opened, and no frame came back through it."""
    EXCESS = "excess"
    """It said more than any answer has."""
    NONSENSE = "nonsense"
    """It answered, and hardly a word of it makes sense."""
    SCHEDULER = "scheduler"
    """srun did not start a task there."""
    BUSY = "busy"
    """Other jobs have it; nothing is known against it."""
    DEFERRED = "deferred"
    """Asking would wake or hold it: it checks itself when a job starts there."""


LATER = "checked when it starts"
"""What is said of a node that is not asked, as Slurm starts it for the job alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Whether and how a node was reached; part of a bundle, as probe outputs are."""

    problem: ReachProblem | None = None
    detail: str = ""
    """The words of whoever could not reach it."""
    via: str = "local"
    """`ssh`, `srun` or `local`."""
    connect_s: float | None = None
    """From the first packet to an open session; None where there is no session to open."""
    latency_s: float | None = None
    """One small round trip over the open connection."""
    clock_skew_s: float | None = None
    """The node's clock minus the client's, corrected by half the latency; None: not measured."""
    complete: bool = True
    """Whether all probes had ended before the node was given up on."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe(Generic[T_co]):
    """A snippet and its parser; `T_co` is the type of the facts."""

    name: str
    """Unique; the name of its file in a bundle."""
    command: str | Callable[[PreflightJob], str | None]
    """The snippet, or a function of the job that returns it; None: nothing to ask for this job."""
    parse: Callable[[str], T_co]
    """Standard output to facts. Raises `Unparsed` on anything it does not know."""
    timeout_s: float = 10.0
    lane: str | None = None
    """Probes of one lane run one after another; without one, beside all others."""
    exit_codes: frozenset[int] = frozenset({0})
    """With which its output counts."""

    def snippet(self, job: PreflightJob) -> str | None:
        """Return the snippet for this job; None where there is nothing to ask."""
        return self.command if isinstance(self.command, str) else self.command(job)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Why a node has no facts from a probe."""

    verdict: Verdict
    """`skip` where the machine does not have the part, else `unknown`."""
    reason: str
    unparsed: bool = False
    """Whether there is an answer that makes no sense."""


def read_output(probe: Probe[T_co], output: Output | None) -> T_co | Missing:
    """Return the facts in `output`, or why there are none.

    Whatever a parser stumbles over is the fault of this output: no other node, nor another probe
    of this one, loses by it.
    """
    if output is not None and output.exit_code == NOT_APPLICABLE:
        return Missing(verdict=Verdict.SKIP, reason=first_line(output.stdout) or "not there")
    why = _why_unusable(probe, output)
    if output is None or why is not None:
        return Missing(verdict=Verdict.UNKNOWN, reason=f"{probe.name} {why}")
    try:
        text = (
            output.stdout
        )  # a line that no snippet prints is refused before an expression meets it
        if len(text) > _LONGEST_LINE and max(map(len, text.split("\n"))) > _LONGEST_LINE:
            raise Unparsed(f"a line of more than {_LONGEST_LINE} characters")
        return probe.parse(text)
    except untrusted.NONSENSE as error:
        why = first_line(str(error)) if isinstance(error, Unparsed) else "a damaged answer"
        reason = f"{probe.name}: unparsed: {why}"
        return Missing(verdict=Verdict.UNKNOWN, reason=reason, unparsed=True)


def _why_unusable(probe: Probe[Any], output: Output | None) -> str | None:
    if output is None:
        return "was not run"
    if output.exit_code is None:
        return "gave no answer before the node's time was up"
    if output.exit_code in probe.exit_codes:
        return None
    if output.exit_code in _TIMED_OUT:
        return f"gave no answer within {probe.timeout_s:g} s"
    message = first_line(output.stderr) or first_line(output.stdout)
    what = "is missing" if output.exit_code == _NOT_FOUND else f"exits {output.exit_code}"
    return what + (f": {message}" if message else "")


def first_line(text: str) -> str:
    """Return the first line that is not blank, free of control characters, at most 200 long."""
    line = next((line.strip() for line in text[:_LONGEST].splitlines() if line.strip()), "")
    return harmless(line).replace("\t", " ")[:200]
