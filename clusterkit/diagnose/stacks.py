"""Where all ranks of a running job stand: py-spy on every node, folded by identical stack.

The snippet finds the processes of the job by their variables (`probes/vitals_ranks.py`), and asks
py-spy about each one that is a rank: a Python process with a rank, whose parent is not that rank.
Those in containers are processes of the node as well, and have the variable; it is the node's
py-spy that looks at them, as nothing of an image is run outside of it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from clusterkit import files
from clusterkit.jobs.state import Job
from clusterkit.probes.base import Missing, PreflightJob, Probe, read_output
from clusterkit.probes.compound import compose, new_token
from clusterkit.probes.vitals_ranks import RANKS
from clusterkit.records import object_of, text_of
from clusterkit.top.subject import of_job
from clusterkit.transport.base import Reply

_TIMEOUT_S = 60.0
_SNIPPET = r"""@RANKS@
python() { case $(readlink "/proc/$1/exe") in */python*) : ;; *) false ;; esac; }
seen=0
set -- $(ranks)
all=" $* "
for l in "$@"; do
p=${l%%,*} r=${l##*,} e=/proc/${l%%,*}/environ
case ${l#*,} in *,-) continue ;; @MARKER@*) python "$p" || continue ;; *) continue ;; esac
up=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$p/status" 2>/dev/null)
case $all in *" $up,${l#*,} "*) python "$up" && continue ;; esac
own=$(tr '\0' '\n' <"$e" | sed -n 's/^PATH=//p')
first=$(tr '\0' '\n' <"/proc/$p/cmdline" | sed -n 1p)
case $first in /*) own=${first%/*}:$own ;; esac
spy=$(PATH=$own:@PATH@:$PATH; command -v py-spy)
seen=1
echo "@ $p $r $(tr '\0' '\n' <"$e" | sed -n 's/^CK_NODE_NAME=//p')"
if [ -z "$spy" ]; then echo "! missing"; continue; fi
"$spy" dump --pid "$p" 2>&1 || echo "! failed"
done
[ $seen = 1 ] || echo "! none"
"""
_RANK = re.compile(r"^@ ([0-9]{1,10}) ([0-9]{1,7})(?: (\S{1,255}))? *$", re.MULTILINE)
_THREAD = re.compile(r"Thread (?:0x)?[0-9A-Fa-f]+ \([^)]*\)(?:: \"(?P<name>.*)\")?")
_COLLECTIVE = re.compile(r"distributed_c10d\.py:|horovod/\S{0,64}mpi_ops\.py:|deepspeed/comm/")
_NOT_PERMITTED = re.compile(r"permission denied|operation not permitted", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The main thread of one rank, innermost frame first."""

    node: str
    rank: int
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """Ranks that stand at the same place."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    frames: tuple[str, ...]


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
            replies += part.transport.ask(part.nodes, compound, heard=lambda _: None)
        finally:
            part.close()
    return fold_stacks(probe, replies, contained=bool(plan.get("container")))


def _probe(marker: str, python: str) -> Probe[str]:
    # No pipe nor quote may get in: it is a word of a shell on the node.
    wanted = shlex.quote(marker)
    folder = shlex.quote(python.rpartition("/")[0] or "/usr/local/bin")
    snippet = _SNIPPET.replace("@MARKER@", wanted).replace("@PATH@", folder)
    snippet = snippet.replace("@RANKS@", RANKS)
    return Probe(name="stacks", command=snippet, parse=str, timeout_s=_TIMEOUT_S)


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
        )
        for frames, same in places.items()
    ]
    groups.sort(key=lambda group: (len(group.ranks), _waits(group.frames), group.ranks))
    return Stacks(groups=tuple(groups), troubles=tuple(troubles))


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
    for part in re.split(r"^(?=@ [0-9]+ [0-9])", text, flags=re.MULTILINE):
        if (match := _RANK.match(part)) is not None:
            pid, rank = int(match[1]), int(match[2])
            where = match[3] or node
            if where in others:
                continue
            stack = _of_rank(part.splitlines()[1:], rank, where)
            yield stack or _trouble(part, pid, where, contained=contained)


def _of_rank(lines: Sequence[str], rank: int, node: str) -> Stack | None:
    threads: list[tuple[str, list[str]]] = []
    for line in lines:
        if (thread := _THREAD.match(line)) is not None:
            threads.append((thread["name"] or "", []))
        elif threads and line.startswith("    ") and line.strip():
            threads[-1][1].append(line.strip())
    main = next((one for one in threads if one[0] == "MainThread"), None)
    main = main or next(iter(threads), None)
    return Stack(node=node, rank=rank, frames=tuple(main[1])) if main and main[1] else None


def _trouble(part: str, pid: int, node: str, *, contained: bool) -> Trouble:
    said = part.partition("\n")[2]
    if "! missing" in said:
        whose = "the Python of the job"
        if contained:
            whose = "the Python of the node, or onto its PATH: that of the image is not used"
        return Trouble(
            node=node, message="py-spy is not there", hint=f"pip install py-spy, into {whose}"
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
