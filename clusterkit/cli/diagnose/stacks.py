"""`clusterkit diagnose --stacks`: where the ranks of a running job stand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterkit.cli.frame import console
from clusterkit.cli.frame.main import EXIT_COULD_NOT
from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.launch.array.spec import fold_numbers

if TYPE_CHECKING:
    from clusterkit.executors.run.runfolder import RunFolder
    from clusterkit.observe.diagnose.stacks import StackGroup, Stacks, Trouble


_PID = re.compile(r"(?<=process )\d+|(?<=--pid )\d+")


def show_stacks(run: RunFolder, *, as_json: bool) -> int:
    """Print the stacks of all ranks, folded; return the exit code of the verb.

    Raises:
        UserError: the job does not run.
        RemoteError: its nodes cannot be asked at all.
    """
    from clusterkit.jobs.document import name_of
    from clusterkit.jobs.state.load import load_job
    from clusterkit.observe.diagnose.stacks import take_stacks

    job = load_job(run)
    found = take_stacks(job)
    if as_json:
        document = {"job_id": name_of(job), "stacks": found.groups, "troubles": found.troubles}
        console.json_document(document)
    else:
        _say(found)
    return 0 if found.groups else EXIT_COULD_NOT


def _say(found: Stacks) -> None:
    for group in found.groups:
        console.say(_who(group))
        for frame in group.frames:
            console.say(f"  {frame}")
        if group.children:
            console.say(f"  below it: {', '.join(group.children)}")
    alike: dict[tuple[str, str], list[Trouble]] = {}
    for trouble in found.troubles:
        key = (_PID.sub("", trouble.message), _PID.sub("", trouble.hint or ""))
        alike.setdefault(key, []).append(trouble)
    for same in alike.values():
        first = same[0]
        nodes = fold_set(tuple(dict.fromkeys(trouble.node for trouble in same)))
        console.warn(f"{nodes}: {first.message}")
        if first.hint:
            console.note(f"hint: {first.hint}")


def _who(group: StackGroup) -> str:
    ranks = f"rank{'s' * (len(group.ranks) > 1)} {fold_numbers(group.ranks)}"
    return f"{console.bold(ranks)}  {fold_set(group.nodes)}"
