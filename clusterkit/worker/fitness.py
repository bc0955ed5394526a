"""What a node checks of itself before it starts the command, where the job asks for it."""

from __future__ import annotations

import os

from clusterkit import files
from clusterkit.errors import ClusterkitError
from clusterkit.records import texts_of
from clusterkit.runfolder import RunFolder
from clusterkit.worker.identity import Identity

UNFIT = 69
"""Exit code of a node that is not fit (EX_UNAVAILABLE of sysexits.h)."""


def unfit_because(run: RunFolder, me: Identity) -> str | None:
    """Return what the checks of this node found; None where it is fit, or nothing is checked.

    The findings stand in the node's log as well. A node that cannot be checked is not unfit.
    """
    document = files.read_json(run.node_checks)
    if document is None or me.name in texts_of(document, "asked"):
        return None
    # Loads a hundred small modules, and only here.
    from clusterkit.preflight.gate import examine_here  # noqa: PLC0415
    from clusterkit.preflight.text import report_lines  # noqa: PLC0415

    try:
        report = examine_here(document, me.name)
    except ClusterkitError as error:
        _log(run, me, [f"this node could not be checked: {error}"])
        return None
    if not report.bad:
        return None
    _log(run, me, [line for _, line in report_lines(report)])
    return "; ".join(f"{finding.id} {finding.summary}" for finding in report.bad)


def _log(run: RunFolder, me: Identity, lines: list[str]) -> None:
    log = files.open_for_append(run.log(me.rank))
    try:
        text = "".join(f"{line}\n" for line in lines)
        os.write(log, f"--- clusterkit: checks of {me.name} before the start\n{text}".encode())
    finally:
        os.close(log)
