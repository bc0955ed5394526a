"""Where all ranks of a running job stand: py-spy on every node, folded by identical stack.

programs/probes/stacks.sh finds the processes of the job by their variables, and asks py-spy about
each one that is a rank: a Python process with a rank, whose parent is not that rank.
Those in containers are processes of the node as well, and have the variable; it is the node's
py-spy that looks at them, as nothing of an image is run outside of it.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from clusterkit.core import files
from clusterkit.core.records import object_of, text_of
from clusterkit.executors.run.hangs import read_kept, stacks_file, stacks_script
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.state.load import Job
from clusterkit.launch.array.spec import ranks_in_words
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import Missing, Output, PreflightJob, Probe, Reach, read_output
from clusterkit.transport.script import compose, new_token

_TIMEOUT_S = 60.0
STOPPED = "stopped by a signal (SIGSTOP): kill -CONT lets it go on"
"""Stands above the frames of a process that does not run at all."""
HALTED = "[stopped]"
"""Stands behind the name of such a process below a rank."""
_RANK = re.compile(r"^@ ([0-9]{1,10}) ([0-9]{1,7})(?: (\S{1,255}))? *$", re.MULTILINE)
_CHILD = re.compile(
    r"^\+ (?P<rank>[0-9]{1,7}) (?P<name>\S{1,64})(?: (?P<node>\S{1,255}))? *\n?", re.MULTILINE
)
_LOCK = re.compile(r"^! lock (?P<age>[0-9]{1,12}) (?P<path>/.*)$", re.MULTILINE)
_BUILDS = re.compile(
    r"^\+ [0-9]+ ninja\b|_(?:run_ninja_build|write_ninja_file)\w{0,40} \(", re.MULTILINE
)
"""Who holds the lock of an extension: torch/utils/cpp_extension.py runs ninja meanwhile."""
_THREAD = re.compile(r"Thread (?:0x)?[0-9A-Fa-f]+ \([^)]*\)(?:: \"(?P<name>.*)\")?")
_COLLECTIVE = re.compile(r"distributed_c10d\.py:|horovod/\S{0,64}mpi_ops\.py:|deepspeed/comm/")
_NOT_PERMITTED = re.compile(r"permission denied|operation not permitted", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The main thread of one rank, innermost frame first."""

    node: str
    rank: int
    frames: tuple[str, ...]
    children: tuple[str, ...] = ()
    """Names of the processes below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """Ranks that stand at the same place."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    frames: tuple[str, ...]
    children: tuple[str, ...] = ()
    """Processes below these ranks, by name: `ninja`, `cc1plus (2)`, `pt_data_worker (8)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why there is no stack of some ranks of a node, and what to type."""

    node: str
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """What came back from all nodes."""

    groups: tuple[StackGroup, ...]
    """The smallest first: who stands elsewhere than most is whom they wait for."""
    troubles: tuple[Trouble, ...]


def take_stacks(job: Job) -> Stacks:
    """Ask all nodes of a running job at once.

    Raises:
        UserError: the job does not run.
        RemoteError: its nodes cannot be asked at all.
    """
    from clusterkit.jobs.nodes import of_job  # noqa: PLC0415 - knows ssh, and all of preflight

    job.run.require_own("look into its processes")
    subject = of_job(job, None)
    plan = files.read_json(job.run.plan) or {}
    python = text_of(object_of(plan, "cluster"), "python") or ""
    probe = _probe(job.run.marker(), python)
    replies: list[Reply] = []
    for part in subject.parts:
        known = PreflightJob(hosts=part.nodes, kind=job.submission.kind)
        compound = compose([probe], known, token=new_token())
        try:
            replies += part.transport.ask(part.nodes, compound, on_reply=lambda _: None)
        finally:
            part.close()
    return fold_stacks(probe, replies, contained=bool(plan.get("container")))


def _probe(marker: str, python: str) -> Probe[str]:
    script = stacks_script(marker, python)
    return Probe(name="stacks", command=script, parse=str, timeout_s=_TIMEOUT_S)


def fold_stacks(probe: Probe[str], replies: Sequence[Reply], *, contained: bool = False) -> Stacks:
    """Return which ranks, in containers or not, stand where, from what the nodes have answered."""
    stacks: list[Stack] = []
    troubles: list[Trouble] = []
    everybody = frozenset(reply.node for reply in replies)
    for reply in replies:
        if reply.reach.problem is not None and not reply.outputs:
            troubles.append(Trouble(node=reply.node, message=reply.reach.detail))
            continue
        said = read_output(probe, reply.outputs.get(probe.name))
        if isinstance(said, Missing):
            troubles.append(Trouble(node=reply.node, message=said.reason))
            continue
        speaks_for_all = reply.reach.via == "local"
        others = frozenset() if speaks_for_all else everybody - {reply.node}
        for found in parse_stacks(said, reply.node, contained=contained, others=others):
            if isinstance(found, Trouble):
                troubles += [found] if found not in troubles else []
            elif (found.node, found.rank) not in {(one.node, one.rank) for one in stacks}:
                stacks.append(found)  # where nodes share a machine, each of them finds all
    places: dict[tuple[str, ...], list[Stack]] = {}
    for stack in stacks:
        places.setdefault(stack.frames, []).append(stack)
    groups = [
        StackGroup(
            ranks=tuple(sorted(stack.rank for stack in same)),
            nodes=tuple(dict.fromkeys(stack.node for stack in same)),
            frames=frames,
            children=_counted(name for stack in same for name in stack.children),
        )
        for frames, same in places.items()
    ]
    groups.sort(key=lambda group: (len(group.ranks), _waits(group.frames), group.ranks))
    return Stacks(groups=tuple(groups), troubles=tuple(troubles))


def _counted(names: Iterable[str]) -> tuple[str, ...]:
    counts = Counter(names)
    return tuple(f"{name} ({n})" if n > 1 else name for name, n in sorted(counts.items()))


def _waits(frames: Sequence[str]) -> bool:
    """Tell whether a rank stands in a collective, where it waits for those that stand elsewhere."""
    return any(_COLLECTIVE.search(frame) for frame in frames)


def parse_stacks(
    text: str, node: str, *, contained: bool = False, others: Set[str] = frozenset()
) -> Iterator[Stack | Trouble]:
    """Yield the stack of each rank in the output of the snippet, or why there is none.

    A node speaks for itself: ranks that it says are one of the `others`' are left out, for those
    are asked as well. This machine, which may be all nodes of a job at once, has no others.

    `py-spy dump`, 0.3 and 0.4: a line for each thread, and its frames indented below.
    """
    if text.strip() == "! none":
        hint = "it has not started its ranks yet"
        if contained:
            hint += ", or only root may look at what runs in its containers: ask again as root"
        yield Trouble(node=node, message="no rank of the job was found", hint=hint)
        return
    children: dict[tuple[str, int], list[str]] = {}
    for child in _CHILD.finditer(text):
        children.setdefault((child["node"] or node, int(child["rank"])), []).append(child["name"])
    builds = _BUILDS.search(text) is not None
    for part in re.split(r"^(?=@ [0-9]+ [0-9])", _CHILD.sub("", text), flags=re.MULTILINE):
        if (match := _RANK.match(part)) is not None:
            pid, rank = int(match[1]), int(match[2])
            where = match[3] or node
            if where in others:
                continue
            below = tuple(children.get((where, rank), ()))
            stack = _of_rank(part.splitlines()[1:], rank, where, below)
            if not builds:
                yield from _stale_locks(part, where)
            yield stack or _trouble(part, pid, where, contained=contained)


def _stale_locks(part: str, node: str) -> Iterator[Trouble]:
    """Yield the locks for which a rank waits while nobody of the job here builds an extension."""
    for match in _LOCK.finditer(part):
        path = " ".join(match["path"].split())
        yield Trouble(
            node=node,
            message=f"ranks wait for {path}, which a build of a torch extension left",
            hint=f"it is {match['age']} s old, and no rank here builds: rm {shlex.quote(path)}",
        )


def _of_rank(
    lines: Sequence[str], rank: int, node: str, children: tuple[str, ...] = ()
) -> Stack | None:
    threads: list[tuple[str, list[str]]] = []
    for line in lines:
        if (thread := _THREAD.match(line)) is not None:
            threads.append((thread["name"] or "", []))
        elif threads and line.startswith("    ") and line.strip():
            threads[-1][1].append(line.strip())
    main = next((one for one in threads if one[0] == "MainThread"), None)
    main = main or next(iter(threads), None)
    halted = (STOPPED,) if "! stopped" in lines else ()
    if not halted and (not main or not main[1]):
        return None
    frames = tuple(main[1]) if main is not None else ()
    return Stack(node=node, rank=rank, frames=(*halted, *frames), children=children)


def _trouble(part: str, pid: int, node: str, *, contained: bool) -> Trouble:
    said = part.partition("\n")[2]
    if "! missing" in said:
        whose = "the Python of the job"
        if contained:
            whose = "the Python of the node, or onto its PATH: that of the image is not used"
        return Trouble(
            node=node, message="py-spy is missing", hint=f"pip install py-spy, into {whose}"
        )
    if _NOT_PERMITTED.search(said):
        return Trouble(
            node=node,
            message="py-spy may not look at the job's processes (ptrace)",
            hint=f"as root there: sysctl kernel.yama.ptrace_scope=0, or py-spy dump --pid {pid}; "
            "in a container: --cap-add SYS_PTRACE",
        )
    words = " ".join(said.replace("! failed", "").split())[:200]
    return Trouble(node=node, message=f"py-spy said of process {pid}: {words or 'nothing'}")


_MOST_KEPT = 1 << 25
"""Bytes of kept stacks of a job that are read."""
_MOST_PLACES = 4
_LOADER = re.compile(r"torch/utils/data/|/data/dataset|webdataset/")
_BACKWARD = "_engine_run_backward ("
"""Where Python stands while DistributedDataParallel exchanges gradients."""
_FUNCTION = re.compile(r"(?P<name>[\w.<>]{1,80}) \(")


def kept_stacks(run: RunFolder, attempt: int, n_nodes: int) -> Stacks:
    """Return where the ranks stood when the job made no progress; nothing where none were kept."""
    probe = Probe(name="stacks", command="", parse=str)
    replies, room = [], _MOST_KEPT
    for rank in range(n_nodes):
        text = read_kept(stacks_file(run, attempt, rank))
        room -= len(text)
        if text and room >= 0:
            outputs = {probe.name: Output(stdout=text)}
            reach = Reach(via="local")  # the name of each node stands in the text
            replies.append(Reply(node=f"node {rank}", reach=reach, outputs=outputs))
    return fold_stacks(probe, replies)


def in_a_sentence(found: Stacks) -> str:
    """Return who waits for whom, such as `rank 5 is in the data loader; ranks 0-4 wait in barrier`.

    Whoever stands elsewhere than most comes first.
    """
    told = [
        f"{ranks_in_words(group.ranks)} {_where(group)}" for group in found.groups[:_MOST_PLACES]
    ]
    more = sum(len(group.ranks) for group in found.groups[_MOST_PLACES:])
    return ", ".join((*told, *([f"{more} more ranks elsewhere"] if more else [])))


def odd_one_out(found: Stacks) -> tuple[str, int] | None:
    """Return the node and the rank that all others wait for; None where it is not one rank."""
    elsewhere = [group for group in found.groups if not _is_behind(group.frames)]
    if len(elsewhere) != 1 or len(found.groups) == 1 or len(elsewhere[0].ranks) != 1:
        return None
    return elsewhere[0].nodes[0], elsewhere[0].ranks[0]


def _is_behind(frames: Sequence[str]) -> bool:
    """Tell whether a rank waits for others: in a collective, or in the backward pass for one."""
    return frames[0] != STOPPED and (_waits(frames) or frames[0].startswith(_BACKWARD))


def _where(group: StackGroup) -> str:
    one = len(group.ranks) == 1
    verb, wait = ("is", "waits") if one else ("are", "wait")
    halted = [name for name in group.children if HALTED in name]
    below = f", with {', '.join(halted)} below" if halted else ""
    if group.frames[0] == STOPPED:
        return f"{verb} stopped (SIGSTOP)"
    calls = [frame for frame in group.frames if _COLLECTIVE.search(frame)]
    named = [found["name"] for frame in calls if (found := _FUNCTION.match(frame))]
    if named:
        return f"{wait} in {named[-1]}{below}"
    if any(_LOADER.search(frame) for frame in group.frames):
        return f"{verb} in the data loader{below}"
    return f"{verb} in {group.frames[0][:120]}{below}"
