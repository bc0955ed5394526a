"""Which lines of a job's logs one rank has printed, where something before a line says so.

The ranks of a node write into one log. Lines tell whose they are where a node has one rank alone,
where a launcher labels them (`--tee` of torchrun, `--tag-output` of mpirun), and where PyTorch or
the script begins them with `[rank3]`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.records import count_of, counts_of, object_of, text_of
from clusterkit.executors.run.runfolder import RunFolder, read_submission
from clusterkit.observe.diagnose.lines import read_line

_TEE = ("torchrun", "accelerate")
"""Frameworks whose own option `tee` labels each line; each node has as many ranks."""
_PLACE_THEMSELVES = ("ray", "spark")
"""Frameworks that choose by themselves where workers run, and print what they print elsewhere."""


class RankLines:
    """Tells line by line whether a rank has printed it, and counts those that name no rank."""

    def __init__(self, run: RunFolder, rank: int, called: str | None = None) -> None:
        """Look up in the plan of a job which node its rank `rank` is on.

        Raises:
            UserError: the job has no such rank.
        """
        plan = files.read_json(run.plan) or {}
        ranks = count_of(plan, "processes")
        if not ranks:
            raise UserError(
                f"{run.plan} cannot be read, so how many ranks the job has is not known",
                hint="all of its lines: clusterkit logs, without --rank",
            )
        elastic = plan.get("max_nodes") is not None
        if rank < 0 or (rank >= ranks and not elastic):
            known = f"ranks 0 to {ranks - 1}" if ranks > 1 else "rank 0 alone"
            raise UserError(f"no rank {rank}: the job has {known}")
        submission = read_submission(run)
        once = submission is not None and submission.once
        self.rank = rank
        self.framework = text_of(plan, "framework")
        self.called = shlex.quote(called or run.key)
        """The word for the job in what to type next: the one that was typed."""
        self.node: int | None = None
        """The node that the rank is on; None where its lines may be in any log."""
        self.own = 0
        """Lines that the rank has printed."""
        self.labelled = 0
        self.unlabelled = 0
        self.labels = _labels(plan)
        """Whether the launcher was told to label the lines of ranks."""
        self._local = ""
        self.alone = False
        """Whether it is the only rank of its node, so that all of the node's lines are its own."""
        if not (elastic or once or _renumbered(run, plan)):
            self._place(_ranks_per_node(plan))

    def _place(self, shares: tuple[int, ...]) -> None:
        first = 0
        for node, share in enumerate(shares):
            if self.rank < first + share:
                self.node, self._local = node, str(self.rank - first)
                self.alone = share == 1
                return
            first += share

    def keep(self, line: str) -> bool:
        """Tell whether the rank has printed this line."""
        read = read_line(line.encode(errors="replace"))
        local = bool(self._local and read.local)
        # A bare number may be that of a step; alone, one of an entry of torchrun's summary.
        if not local and (read.before is None or read.bare or not read.text.strip()):
            self.unlabelled += 1
            return False
        self.labelled += 1
        own = read.local == self._local if local else read.before == self.rank
        self.own += own
        return own

    @property
    def advice(self) -> str:
        """How lines come to name their rank, and where all of them are."""
        if self.framework in _TEE and self._local:
            tee = f"--set {self.framework}.tee=3"
            how = f"submit with {tee}, or clusterkit rerun {self.called} {tee}"
        else:
            how = "let the script begin its lines with [rank N]"
        node = f"; all lines of its node: --node {self.node}" if self.node is not None else ""
        return f"to label them, {how}{node}"


def _labels(plan: Mapping[str, Any]) -> bool:
    """Tell whether `tee` of torchrun is among the launcher's words, or in the job's environment."""
    words = object_of(plan, "command").get("argv")
    own = words if isinstance(words, list) else []
    own = own[: own.index(plan["script"])] if plan.get("script") in own else own
    teed = any(str(word).startswith("--tee") for word in own)
    return teed or bool(object_of(plan, "env").get("PET_TEE"))


def _renumbered(run: RunFolder, plan: Mapping[str, Any]) -> bool:
    """Tell whether ranks may count other nodes than logs do: of a filter, or without lost nodes."""
    filtered = bool(object_of(object_of(plan, "command"), "slot_filter"))
    return filtered or bool(count_of(plan, "spares")) or run.has_left_nodes


def _ranks_per_node(plan: Mapping[str, Any]) -> tuple[int, ...]:
    """Return how many ranks each node has, in rank order; nothing where the plan leaves it open."""
    slots, ranks = tuple(counts_of(plan, "slots")), count_of(plan, "processes")
    framework = text_of(plan, "framework")
    if framework in _PLACE_THEMSELVES:
        return ()
    if sum(slots) == ranks:
        return slots
    share, rest = divmod(ranks, len(slots) or 1)
    # Others fill node by node, or divide evenly: the plan does not say which.
    return (share,) * len(slots) if framework in _TEE and rest == 0 else ()
