"""A job that makes no progress: what a node has noticed, and where the ranks of each node stood.

`hang-ATTEMPT.json` is created by the node that notices it first; the others find it there. What
they see of their own processes is kept in `stacks/`, of the last hang of the last two attempts.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from clusterkit.core import files, reading
from clusterkit.core.bounds import Matching, Moment, NodeName, Rank, Within
from clusterkit.core.data import read_template
from clusterkit.core.errors import UserError
from clusterkit.core.records import record_of
from clusterkit.core.text import in_words
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder

HUNG = 124
"""Exit code of a command that was ended because it made no progress, as that of timeout(1)."""
DUMPS = "flight-recorder-{}-rank-"
"""What names of an attempt's dumps begin with, in the results; node.sh asks for them."""
_LARGEST = 1 << 19
"""Bytes that are kept of the stacks of one node."""
_ATTEMPTS = 2
"""Attempts of which stacks are kept."""
_Silence = Annotated[float, Within(0, 1e9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """What stands in `hang-ATTEMPT.json`."""

    node: NodeName
    node_rank: Rank
    at: Moment
    """Seconds since the epoch, when it was noticed."""
    silent_s: _Silence
    """How long there had been no progress then."""
    patience_s: _Silence
    """How long this job may make none."""
    by: Annotated[str, Matching("steps|heartbeat|activity")]
    """What told progress before; activity, where the script has told none."""
    step: Annotated[int, Within(0, 1 << 62)] | None = None
    """The last step."""
    over: bool = False
    """Whether it has gone on."""

    @property
    def what(self) -> str:
        """Return what was noticed, in words."""
        silent = in_words(self.silent_s)
        if self.by == "activity":
            alone = "judged by that alone, as no step was printed"
            return f"{self.node} was idle, without output, for {silent} ({alone})"
        last = "" if self.step is None else f", after step {self.step}"
        what = "heartbeat" if self.by == "heartbeat" else "step"
        return f"no {what} for {silent}{last}"

    @property
    def text(self) -> str:
        """Return it in words, as the reason of a job that is running."""
        return f"it hangs: {self.what}"


def hang_file(run: RunFolder, attempt: int) -> Path:
    """Return the file of what was noticed in an attempt."""
    return run.path / f"hang-{attempt}.json"


def stacks_file(run: RunFolder, attempt: int, node_rank: int) -> Path:
    """Return the file of where the ranks of a node stood then."""
    return run.path / "stacks" / f"{attempt}-node-{node_rank}.txt"


def ras_file(run: RunFolder, attempt: int) -> Path:
    """Return the file of what NCCL's RAS said then, on the node that noticed it."""
    return run.path / "stacks" / f"{attempt}-nccl-ras.txt"


def progress_file(run: RunFolder, attempt: int) -> Path:
    """Return what is there once a node has told progress in an attempt; it names that node."""
    return run.path / f"progress-{attempt}"


def open_hang(run: RunFolder, attempt: int) -> Hang | None:
    """Return what was noticed in this attempt; None where nothing was, or it has gone on since."""
    found = read_hang(run, attempt)
    return None if found is None or found.over else found


def read_hang(run: RunFolder, attempt: int) -> Hang | None:
    """Return what was noticed last in this attempt; None where nothing was."""
    path = hang_file(run, attempt)
    if path.name not in runfolder.listed(run.path):
        return None
    return record_of(Hang, files.read_json(path))


def note(run: RunFolder, attempt: int, hang: Hang) -> bool:
    """Write down what this node has noticed; tell whether it is the first to."""
    before = read_hang(run, attempt)
    path = hang_file(run, attempt)
    if before is None:
        return files.create_text(path, json.dumps(_document(hang)))
    if not before.over and before.node_rank != hang.node_rank:
        return False
    files.write_json(path, _document(hang))
    return True


def note_over(run: RunFolder, attempt: int, hang: Hang) -> None:
    """Write down that it has gone on."""
    files.write_json(hang_file(run, attempt), _document(dataclasses.replace(hang, over=True)))


def _document(hang: Hang) -> dict[str, Any]:
    document: dict[str, Any] = files.plain(hang)
    return {"schema": runfolder.SCHEMA, **document}


def document_of(hang: Hang | None) -> Mapping[str, Any] | None:
    """Return what `--json` tells of it."""
    return None if hang is None else {**files.plain(hang), "text": hang.text}


def stacks_script(marker: str, python: str) -> str:
    """Return what prints where the ranks stand that carry a marker, for the sh of their node.

    Args:
        marker: What the marks of the job's processes begin with.
        python: The Python of the cluster, beside which py-spy may lie.
    """
    # No pipe nor quote may get in: it is a word of a shell on the node.
    folder = shlex.quote(python.rpartition("/")[0] or "/usr/local/bin")
    snippet = read_template("programs/probes/stacks.sh")
    snippet = snippet.replace("@MARKER@", shlex.quote(marker)).replace("@PATH@", folder)
    return read_template("programs/probes/ranks.sh") + snippet


def keep(run: RunFolder, attempt: int, path: Path, text: str) -> None:
    """Keep what a node saw; that of attempts before the last one goes, which makes room.

    Raises:
        UserError: the disk takes no more.
    """
    for name in reading.names_in(path.parent):
        number = name.partition("-")[0]
        if number.isdecimal() and int(number[:9]) <= attempt - _ATTEMPTS:
            with suppress(UserError):
                files.remove(path.parent / name)
    runfolder.create_state_folder(run, path.parent)
    files.write_bytes(path, text.encode(errors="replace")[:_LARGEST])


def count_stacks(run: RunFolder, attempt: int) -> int:
    """Return how many nodes have left where their ranks stood in an attempt."""
    names = runfolder.listed(stacks_file(run, attempt, 0).parent)
    return sum(name.startswith(f"{attempt}-node-") for name in names)


def read_kept(path: Path) -> str:
    """Return what a node saw; empty where it has left nothing."""
    return reading.read_start(path, _LARGEST).decode(errors="replace")
