"""Build targets, one after the other or in one go of bake, and say how it goes."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core import files
from clusterkit.core.errors import RemoteError
from clusterkit.images import engine
from clusterkit.images.bake import BAKE_FILE, SCRIPT, bake_document, build_command, build_script
from clusterkit.images.build_errors import explain_failure
from clusterkit.images.engine import Engine
from clusterkit.images.progress import Progress, Step, StepState
from clusterkit.images.recipe import Target, Wishes

Listener = Callable[[str, Step | str], None]
"""Is told the name of a target and a step that changed, or a raw line."""

_PUSH_S = 7200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image that is there now."""

    name: str
    variant: str
    tag: str
    tags: tuple[str, ...]
    digest: str
    """Of its configuration, by which an engine knows it: `docker image inspect`'s Id."""
    recipe: str
    size_bytes: int
    seconds: float
    steps: int
    cached_steps: int
    pushed: bool


def write_folder(targets: Sequence[Target], wishes: Wishes, folder: Path) -> None:
    """Write everything that a build needs: contexts, a bake file, a script of plain commands."""
    files.create_output_folder(folder)
    for target in targets:
        target.context.write(folder / target.folder)
    bake = bake_document(targets, wishes, Path())
    files.write_text(folder / BAKE_FILE, json.dumps(bake, indent=2) + "\n", mode=files.output())
    program = files.output(files.PUBLIC_PROGRAM)
    files.write_text(folder / SCRIPT, build_script(targets, wishes), mode=program)


def build(
    targets: Sequence[Target], wishes: Wishes, *, builder: Engine, push: bool, listen: Listener
) -> Iterator[Built]:
    """Build the targets, parents first, and yield each that is done.

    Raises:
        RemoteError: a step failed; with its own output.
    """
    with tempfile.TemporaryDirectory(prefix="clusterkit-images-") as name:
        folder = Path(name)
        for target in targets:
            target.context.write(folder / target.folder)
        if builder.driver == "docker":
            for target in targets:
                command = build_command(target, wishes, folder, buildx=builder.buildx)
                started = time.monotonic()
                steps = _run(command, target.name, builder, listen)
                if push:
                    _push(target, listen)
                yield _built(target, steps, time.monotonic() - started, pushed=push)
        else:
            yield from _bake(targets, wishes, folder, builder, push, listen)


def _bake(
    targets: Sequence[Target],
    wishes: Wishes,
    folder: Path,
    builder: Engine,
    push: bool,
    listen: Listener,
) -> Iterator[Built]:
    document = bake_document(targets, wishes, folder)
    for target in document["target"].values():
        target["args"] |= {name: os.environ[name] for name in wishes.proxies}
    path = folder / BAKE_FILE
    files.write_json(path, document, mode=files.PRIVATE)  # a proxy's address may hold a password
    command = ["docker", "buildx", "bake", "--progress=plain", "--file", str(path), "--load"]
    started = time.monotonic()
    steps = _run(command, ", ".join(target.name for target in targets), builder, listen)
    for target in targets:
        if push:  # bake refuses --load and --push at once
            _push(target, listen)
        yield _built(target, steps, time.monotonic() - started, pushed=push)


def _run(
    command: Sequence[str], name: str, builder: Engine, listen: Listener
) -> Mapping[str, Step]:
    progress = Progress()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **builder.environment},
    ) as process:
        for line in process.stdout or ():
            listen(name, line.rstrip("\n"))
            changed = progress.feed(line)
            if changed is not None:
                listen(name, changed)
    if process.returncode:
        raise explain_failure(name, progress, process.returncode)
    return progress.steps


def _push(target: Target, listen: Listener) -> None:
    for tag in target.tags:
        listen(target.name, f"docker push {tag}")
        answer = engine.ask("push", "--quiet", tag, timeout_s=_PUSH_S)
        if answer.code:
            raise RemoteError(
                f"{tag} was built and not pushed: {answer.errors.strip()}",
                hint=f"docker login {tag.partition('/')[0]}",
            )


def _built(target: Target, steps: Mapping[str, Step], seconds: float, *, pushed: bool) -> Built:
    tag = target.tags[0]
    (present,) = engine.inspect(tag)
    if present is None:
        raise RemoteError(
            f"docker says that it built {tag}, and does not have it",
            hint="docker buildx ls: a builder of its own keeps images to itself",
        )
    # FROM makes nothing, and BuildKit does not always say that it was cached.
    own = [step for step in steps.values() if not step.internal and "] FROM " not in step.name]
    return Built(
        name=target.image.name,
        variant=target.variant,
        tag=tag,
        tags=target.tags,
        digest=present.id,
        recipe=target.recipe,
        size_bytes=present.size_bytes,
        seconds=round(seconds, 1),
        steps=len(own),
        cached_steps=sum(step.state is StepState.CACHED for step in own),
        pushed=pushed,
    )
