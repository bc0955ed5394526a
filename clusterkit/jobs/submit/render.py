"""The files of a job, for those who run it by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from clusterkit.core import files
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.model import LaunchPlan, RenderedFile
from clusterkit.launch.render import KINDS


def check_kinds(only: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds of files to render; all where none is named.

    Raises:
        UserError: there is no such kind.
    """
    for kind in only:
        if kind not in KINDS:
            raise UserError(f"--only {kind}: no such file", hint=choices_hint(kind, KINDS))
    return tuple(only or KINDS)


def rendering_document(plan: LaunchPlan, rendered: Sequence[RenderedFile]) -> dict[str, Any]:
    """Return what `--json` tells of a job that is not submitted."""
    return {"plan": plan, "files": rendered}


def write_files(rendered: Sequence[RenderedFile], folder: Path) -> Iterator[Path]:
    """Write each file into `folder`, and yield its path.

    Raises:
        UserError: it cannot be written.
    """
    files.create_output_folder(folder)
    for file in rendered:
        path = folder / file.name
        files.write_text(
            path,
            file.text,
            mode=files.output(files.PUBLIC_PROGRAM if file.executable else files.PUBLIC),
        )
        yield path
