"""Read what BuildKit says while it builds (`--progress=plain`): its steps, and which one failed.

Lines are `#N TEXT`; the first of a step is its name. BuildKit has no other form for programs that
releases before 24 know.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

_LINE = re.compile(r"#(\d+) (.*)")
_DONE = re.compile(r"DONE ([0-9.]+)s")
_OUTPUT = re.compile(r"[0-9]+\.[0-9]++ ?(.*)")
_QUIET = re.compile(r"sha256:[0-9a-f]{64}$|\.\.\.$|transferring |extracting |resolve |reading ")
_KEPT_LINES = 400


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
