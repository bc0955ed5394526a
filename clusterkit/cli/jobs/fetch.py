"""`clusterkit fetch`: bring what a job wrote on its cluster to this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from clusterkit.cli.frame import console, relay
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.job_args import JobArgument, run_named
from clusterkit.cli.frame.receive import receive
from clusterkit.core import files
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.records import text_of, texts_of

if TYPE_CHECKING:
    from clusterkit.cli.frame.relay import Relay
    from clusterkit.executors.run.runfolder import RunFolder
    from clusterkit.transport.login import LoginNode

_KEPT = ("results", "logs")
"""Of a run folder, what is brought where nobody says."""
_ANSWER_S = 60.0


@explained
def fetch(
    job: JobArgument,
    path: str | None = None,
    output: Path | None = None,
    json: JsonFlag = False,
) -> None:
    """Bring results, checkpoints or other files of a job from its login node.

    What is here already is not sent again. Of a job on this machine it tells
    where they are.
    """
    way = relay.relay_for(job)
    if way is None:
        run = run_named(job)
        folder, names = _places(run, path)
        document = {"run": run.run_id, "folder": folder, "paths": names}
        if json:
            console.json_document(document)
        else:
            console.say(*(str(Path(folder, name)) for name in names))
        return
    node = way.node()
    given = () if output is None else ("--output", str(output))
    run_id, folder, names = _asked(way, node, (job, *(() if path is None else (path,))), given)
    target = Path(run_id) if output is None else output
    ignored = target / ".gitignore"
    made = output is None and files.create_folder(target)
    if made:
        files.write_text(ignored, "*\n")  # the next job need not have it
    count = receive(node.helper(), folder, names, target)
    text = f"{count} file{'s' * (count > 1)} brought to" if count else "nothing new for"
    said = f"{text} {target}"
    if made and not count:
        ignored.unlink()
        target.rmdir()
        said = f"no files there yet: {node.name}:{folder}"
    if json:
        console.json_document({"run": run_id, "folder": target, "files": count})
    else:
        console.say(said)


def _places(run: RunFolder, path: str | None) -> tuple[str, list[str]]:
    """Return a folder, and what is meant in it.

    Raises:
        UserError: there is no such file or folder.
    """
    if path is None:
        names = [name for name in _KEPT if (run.path / name).is_dir()]
        return str(run.path), names
    folder = text_of(files.read_json(run.plan) or {}, "workdir") or str(run.path)
    found = Path(os.path.normpath(Path(folder, path)))
    if not found.exists():
        raise UserError(
            f"there is no {found}", hint=f"relative paths count from {folder}, where the job ran"
        )
    return str(found.parent), [found.name]


def _asked(
    way: Relay, node: LoginNode, named: Sequence[str], given: Sequence[str]
) -> tuple[str, str, list[str]]:
    """Ask the login node for the name of a run, the folder of its files, and their names there.

    `given` are flags of this machine's own, which hints repeat.
    """
    asked = ["fetch", "--json", "--"]
    script = way.script([*asked, *named])
    answer = node.answer(("bash", "-c", script), timeout_s=_ANSWER_S)
    document = files.parse_json(answer.output.encode()) or {}
    run_id, folder = text_of(document, "run"), text_of(document, "folder")
    names = texts_of(document, "paths")
    if not answer.ok or not run_id or not folder:
        lines = answer.errors.strip().splitlines() or [f"exit code {answer.code}"]
        told = next((line for line in lines if line.startswith("error: ")), lines[-1])
        begun = next((k for k, line in enumerate(lines) if line.startswith("hint: ")), len(lines))
        hint = "\n".join(lines[begun:]).removeprefix("hint: ") or None
        if hint is not None:
            typed = shlex.join(["fetch", *given])
            hint = hint.replace(f"clusterkit {shlex.join(asked)} ", f"clusterkit {typed} ")
        message = told.removeprefix("error: ").removeprefix(f"{node.name}: ")
        raise RemoteError(message, node=node.name, hint=hint)
    if PurePosixPath(run_id).name != run_id or run_id in {".", ".."}:
        raise RemoteError(f"answers nonsense: a run {shlex.quote(run_id[:80])}", node=node.name)
    return run_id, folder, [*names]
