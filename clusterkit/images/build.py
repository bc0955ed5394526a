"""Build targets one after the other with the engine's own BuildKit, and say how it goes.

BuildKit's lines (`--progress=plain`) are `#N TEXT`; the first of a step is its name. It has no
other form for programs that releases before 24 know.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from clusterkit.core.data import read_table
from clusterkit.core.errors import RemoteError
from clusterkit.images import engine
from clusterkit.images.engine import docker_error
from clusterkit.images.recipe import BuildOptions, Target, build_command

_LINE = re.compile(r"#(\d+) (.*)")
_DONE = re.compile(r"DONE ([0-9.]+)s")
_OUTPUT = re.compile(r"[0-9]+\.[0-9]++ ?(.*)")
_QUIET = re.compile(r"sha256:[0-9a-f]{64}$|\.\.\.$|transferring |extracting |resolve |reading ")
_KEPT_LINES = 400
_SHOWN_LINES = 30
_PUSH_S = 7200.0

_HINTS = tuple(
    (re.compile(row["pattern"], re.IGNORECASE), row["hint"])
    for row in read_table(__file__, "build_errors.tsv")
)
_METADATA = re.compile(r"\[(\S+ )?internal\] load metadata for (?P<image>\S+)")


class StepState(StrEnum):
    """Where a step is."""

    RUNNING = "running"
    DONE = "done"
    CACHED = "cached"
    FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class Step:
    """One step of a build."""

    name: str
    state: StepState = StepState.RUNNING
    seconds: float = 0.0
    error: str = ""
    output: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    """The end of what its command printed."""

    @property
    def internal(self) -> bool:
        """Tell whether it is BuildKit's own: no step of the Dockerfile."""
        return not re.match(r"\[([^\]]* )?\d+/\d+\]", self.name)


@dataclass(slots=True, kw_only=True)
class Progress:
    """The steps of one build, as far as it has come."""

    steps: dict[str, Step] = field(default_factory=dict)
    rest: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    """Lines of no step: what the client itself says."""

    def feed(self, line: str) -> Step | None:
        """Take a line; return its step where this line changed what state it is in."""
        line = line.rstrip()
        found = _LINE.fullmatch(line)
        if found is None:
            if line:
                self.rest.append(line)
            return None
        number, text = found.groups()
        step = self.steps.get(number)
        if step is None:
            self.steps[number] = Step(name=text)
            return self.steps[number]
        return _advance(step, text)

    @property
    def failed(self) -> Step | None:
        """Return the step that failed of itself, and not because another had."""
        steps = [step for step in self.steps.values() if step.state is StepState.FAILED]
        own = [step for step in steps if step.output or step.internal]
        return next(iter(own or steps), None)


def _advance(step: Step, text: str) -> Step | None:
    done = _DONE.fullmatch(text)
    if done:
        # A step may be done in several parts; only some of them were waited for.
        step.seconds += float(done.group(1))
        step.state = StepState.DONE
    elif text == "CACHED":
        step.state = StepState.CACHED
    elif text.startswith("ERROR"):
        step.state = StepState.FAILED
        step.error = text.removeprefix("ERROR: ").removeprefix("ERROR ")
    elif text == "CANCELED":
        return None
    else:
        output = _OUTPUT.fullmatch(text)
        if output:
            step.output.append(output.group(1))
        elif not _QUIET.search(text) and text != step.name:
            step.output.append(text)
        return None
    return step


OnProgress = Callable[[str, Step | str], None]
"""Called with the name of a target and a step that changed, or a raw line."""


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


def build(
    targets: Sequence[Target], options: BuildOptions, *, push: bool, on_progress: OnProgress
) -> Iterator[Built]:
    """Build the targets, parents first, and yield each that is done.

    The builder is that of the engine, as it is for `docker build`, whichever `docker buildx use`
    names: another one does not see the parents that the engine has.

    Raises:
        RemoteError: a step failed; with its own output.
    """
    with tempfile.TemporaryDirectory(prefix="clusterkit-images-") as name:
        folder = Path(name)
        for target in targets:
            target.context.write(folder / target.folder)
        for target in targets:
            started = time.monotonic()
            steps = _run(build_command(target, options, folder), target.name, on_progress)
            if push:
                _push(target, on_progress)
            yield _built(target, steps, time.monotonic() - started, pushed=push)


def _run(command: Sequence[str], name: str, on_progress: OnProgress) -> Mapping[str, Step]:
    progress = Progress()
    own = {key: value for key, value in os.environ.items() if key != "BUILDX_BUILDER"}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**own, "DOCKER_BUILDKIT": "1"},
    ) as process:
        for line in process.stdout or ():
            on_progress(name, line.rstrip("\n"))
            changed = progress.feed(line)
            if changed is not None:
                on_progress(name, changed)
    if process.returncode:
        raise explain_failure(name, progress, process.returncode)
    return progress.steps


def _push(target: Target, on_progress: OnProgress) -> None:
    for tag in target.tags:
        on_progress(target.name, f"docker push {tag}")
        answer = engine.ask("push", "--quiet", tag, timeout_s=_PUSH_S)
        if answer.code:
            raise RemoteError(
                f"{tag} was built and not pushed: {answer.errors.strip()}",
                hint=f"docker login {tag.partition('/')[0]}",
            )


def _built(target: Target, steps: Mapping[str, Step], seconds: float, *, pushed: bool) -> Built:
    tag = target.tags[0]
    present = engine.inspect(tag)
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


def explain_failure(name: str, progress: Progress, code: int) -> RemoteError:
    """Return the error of a build that ended with `code`."""
    step = progress.failed
    if step is None:
        shown_output = (
            "\n".join(list(progress.rest)[-_SHOWN_LINES:]) or f"docker ended with code {code}"
        )
        return RemoteError(
            f"{name} was not built\n{_indent(shown_output)}", hint=_hint(shown_output)
        )
    unpulled = _METADATA.match(step.name)
    if unpulled:
        return RemoteError(
            f"{name} was not built: its base image {unpulled['image']} cannot be pulled\n"
            f"{_indent(step.error)}",
            hint="name one that is there (docker image ls) with --root IMAGE; or else see to the "
            "network, the proxy of the Docker daemon, or docker login",
        )
    lines = list(step.output)
    shown = lines[-_SHOWN_LINES:]
    if len(lines) > len(shown):
        shown.insert(0, f"... (the last {_SHOWN_LINES} lines; --verbose shows all)")
    shown_output = "\n".join((*shown, step.error))
    return RemoteError(
        f"{name} was not built: this step failed\n  {step.name}\n{_indent(shown_output)}",
        hint=_hint(f"{shown_output}\n{step.error}"),
    )


def _hint(shown_output: str) -> str | None:
    known = (hint for pattern, hint in _HINTS if pattern.search(shown_output))
    return next(known, None) or docker_error(shown_output).hint


def _indent(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())
