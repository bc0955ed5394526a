"""Rules of `clusterkit diagnose`: data, one small YAML file each, here and in folders of a site.

The keys are documented in docs/how-to/diagnose.md; what is read here is a contract with rule files
that others keep. Patterns are Python regular expressions, searched in one line of a log after the
prefixes of launchers, colours and carriage returns are gone (`clusterkit.observe.diagnose.lines`).
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.dataclasses import dataclass

from clusterkit.core import ownership
from clusterkit.core.errors import Problem, UserError, did_you_mean
from clusterkit.preflight.probes.gpu.kernel_log import harmless_lines

FOLDER = Path(__file__).resolve().parent / "rules"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_NO_FAILURE = re.compile(r"\.py:\d+: \w*Warning: |Error: Traceback \(most recent call last\):$")
"""What Python's warnings begin with: whoever warns continues, whatever has failed. And how old
PyTorch passes on the exception of a data-loader worker, which stands below it."""
_FIELD = re.compile(r"\{(\w+)\}")
_GROUP = re.compile(r"\(\?P<(\w+)>")
OF_MANY = re.compile(r"^(?:all|last)_")
"""In `near`: the group is filled in from all lines that match, or from the last of them."""
_HARMLESS_XIDS = "{harmless-xids}"
"""In `unless`: lines of Xids that NVIDIA's catalogue lays to no node."""
GENERIC = 20
"""Rules up to this priority say no more than that a rank has failed."""
LEAST_NEED = 5
"""Characters of a prefilter text: shorter ones stand in too many lines to be of use."""


class Role(StrEnum):
    """What a line that matches says of the failure."""

    CAUSE = "cause"
    """It can be the root of a failure."""
    SYMPTOM = "symptom"
    """It is the root only where nothing better is found: time-outs, aborts, exceptions."""
    CONSEQUENCE = "consequence"
    """It happens to ranks because another has failed."""


class Compare(StrEnum):
    """What has to differ between nodes for a rule to fire."""

    DIFFERS = "differs"
    """The group `value` (of the same group `what`, where the pattern has one).

    With a group `number`, at the same number, or at neighbouring ones its first word.
    """
    SOME_NODES = "some-nodes"
    """Some nodes print such a line, and others with output do not."""


class Pattern:
    """A regular expression, compiled when it is first searched: a log needs few of our 2,000."""

    def __init__(self, text: str) -> None:
        """Take its text."""
        self.text = text

    @functools.cached_property
    def compiled(self) -> re.Pattern[str]:
        """What Python makes of it; raises `re.error` where it is no regular expression."""
        return re.compile(self.text)

    @functools.cached_property
    def groups(self) -> tuple[str, ...]:
        """The names of its groups."""
        return tuple(_GROUP.findall(self.text))

    def search(self, line: str) -> re.Match[str] | None:
        """Return where a line matches first; None where it does not."""
        return self.compiled.search(line)


def gathers(pattern: Pattern) -> bool:
    """Tell whether a pattern in `near` fills in what many lines tell, and asks for no such line."""
    return any(map(OF_MANY.match, pattern.groups))


def _pattern(text: object, info: ValidationInfo) -> object:
    """Return a pattern, tried where the rule is not one of ours, which tests have tried."""
    if not isinstance(text, str):
        return text
    if not text:
        raise ValueError("no regular expression: it is empty")
    if _HARMLESS_XIDS in text:
        text = text.replace(_HARMLESS_XIDS, harmless_lines())
    pattern = Pattern(text)
    try:
        if not info.context:
            pattern.compiled  # noqa: B018
    except re.error as error:
        raise ValueError(f"no regular expression: {text!r}: {error}") from error
    return pattern


_Text = Annotated[str, Field(min_length=1)]
_Texts = Annotated[tuple[_Text, ...], Field(min_length=1)]
_Pattern = Annotated[Pattern, BeforeValidator(_pattern)]


_CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, config=_CONFIG)
class Rule:
    """One rule, as it stands in a file of its own; of two that say the same, each is another."""

    id: str
    """The name of the file."""
    title: _Text
    role: Role
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    needs: Annotated[tuple[Annotated[str, Field(min_length=LEAST_NEED)], ...], Field(min_length=1)]
    patterns: Annotated[tuple[_Pattern, ...], Field(min_length=1)]
    unless: tuple[_Pattern, ...] = ()
    unless_next: tuple[_Pattern, ...] = ()
    near: tuple[_Pattern, ...] = ()
    ends: tuple[_Pattern, ...] = ()
    """Of the head of a traceback: what stands below its frames, empty at the end of the log."""
    frame: tuple[_Pattern, ...] = ()
    trace: tuple[_Pattern, ...] = ()
    """As `frame`, of any line of the traceback of the exception, frames and source."""
    before: Annotated[int, Field(ge=0, le=20)] = 0
    after: Annotated[int, Field(ge=0, le=20)] = 0
    says: _Text
    do: _Text
    defaults: Mapping[str, str] = field(default_factory=dict)
    advice: Literal["estimate"] | None = None
    source: _Text
    examples: _Texts
    healthy: _Texts
    times: Annotated[int, Field(ge=1, le=1000)] = 1
    within: Annotated[int, Field(ge=1)] = 1000
    resets: tuple[_Pattern, ...] = ()
    compare: Compare | None = None
    silent: bool = False
    alone: bool = False
    """Whether this consequence is the root where nothing is known but an exit code."""
    outside: bool = False
    """Whether somebody else ended the job: what had failed before it is the root."""
    ending: bool = False
    """Whether processes print it also as they are ended, or as they leave after all went well."""
    parting: bool = False
    """Whether it is how a process ended that may have failed of what it printed just before."""
    retried: bool = False
    """Whether programs print it and try again, so that those that go on well have not failed."""
    closing: bool = False
    """Whether it counts only among the last lines of a log, where no other rule knows the line."""
    hardware: bool = False
    """Whether the hardware of the node that prints it is at fault, and another may do better."""

    @model_validator(mode="after")
    def _known_groups(self) -> Rule:
        groups = set(self.defaults)
        around = (*self.near, *self.frame, *self.trace, *self.ends)
        for pattern in (*self.patterns, *self.unless, *self.unless_next, *around, *self.resets):
            groups |= set(pattern.groups)
        groups |= {OF_MANY.sub("", name) for name in groups}
        used = _FIELD.findall(self.title + self.says + self.do)
        if unknown := sorted(set(used) - groups - ENGINE_FIELDS):
            raise ValueError(f"no pattern has a group {{{unknown[0]}}}")
        if self.compare is Compare.DIFFERS and "value" not in groups:
            raise ValueError("`compare: differs` needs a group (?P<value>...) in its patterns")
        if self.title.endswith("."):
            raise ValueError("the title ends without a full stop")
        return self

    @property
    def generic(self) -> bool:
        """Whether it says no more than that a rank has failed."""
        return self.priority <= GENERIC

    @property
    def asks_around(self) -> bool:
        """Whether its texts use what is said just above or below the line."""
        return any(name in self.title + self.says for name in ("{above}", "{below}"))

    @property
    def general_title(self) -> str:
        """The title of any such failure: groups are words in capitals."""
        return _FIELD.sub(lambda name: name[1].upper(), self.title)

    @property
    def conditional(self) -> bool:
        """Whether it asks for more than its line."""
        asks = not all(map(gathers, self.near)) or bool(self.frame or self.trace)
        return asks or self.compare is not None

    @property
    def by_line(self) -> bool:
        """Whether its line alone is a find, wherever it stands; what is around may tell more."""
        around = not self.near or any(pattern.text == "." for pattern in self.near)
        alone = (
            not (self.frame or self.trace or self.ends) and self.compare is None and self.times == 1
        )
        return around and alone and not self.closing

    def match(self, text: str) -> re.Match[str] | None:
        """Return how the first pattern matches a clean line; None where it is not such a line."""
        found = self._search(text)
        return None if found is None or self._harmless(text) else found

    def excuses(self, text: str) -> bool:
        """Tell whether it is one of the lines that this rule knows as harmless."""
        return bool(self.unless) and self._search(text) is not None and self._harmless(text)

    def _search(self, text: str) -> re.Match[str] | None:
        for need in self.needs:
            if need in text:
                return next((match for p in self.patterns if (match := p.search(text))), None)
        return None

    def _harmless(self, text: str) -> bool:
        return bool(_NO_FAILURE.search(text)) or any(p.search(text) for p in self.unless)

    def reset_by(self, text: str) -> bool:
        """Tell whether a clean line between two that match says that what they tell had passed."""
        return any(pattern.search(text) for pattern in self.resets) and not any(
            pattern.search(text) for pattern in self.unless
        )

    def fill(self, text: str, groups: Mapping[str, str]) -> str:
        """Return `text` with `{named}` groups filled in; one with no value and no default goes.

        At the end `; SO AND SO:` goes with it.
        """
        known = {**self.defaults, **{name: value for name, value in groups.items() if value}}
        filled = _FIELD.sub(lambda name: known.get(name[1], ""), text)
        said = re.sub(r" ([.,;:])(?=\s|$)", r"\1", re.sub(r"  +", " ", filled)).strip()
        ends_empty = text.endswith("}") and not known.get(text.rpartition("{")[2][:-1])
        return _OF_NOTHING.sub("", said) if ends_empty else said


_OF_NOTHING = re.compile(r"; [^;:]{1,60}:$")
_RULE = TypeAdapter(Rule)
ENGINE_FIELDS = frozenset(
    {"node", "rank", "job", "values", "place", "look", "then", "above", "below", "frame", "reason"}
)
"""Fields that the engine knows itself; `values`: what differs, of `compare: differs`; `place`:
where in the script it was raised, and `look`: what to look at there; `then`, of rules up to
GENERIC: what exception that led to; `above`, `below`: what is said just above, and just below a
line that tells no `message`; `frame`, of rules with `ends`: the last of a traceback, and
`reason`: the error that is told just above it."""


def load_rules(extra: Iterable[Path] = ()) -> tuple[Rule, ...]:
    """Return all rules by name; a rule of a folder in `extra` takes the place of its namesake.

    Raises:
        UserError: files that are no rules, all problems at once.
    """
    rules = {rule.id: rule for rule in own_rules()}
    for folder in extra:
        rules |= {rule.id: rule for rule in read_rules(folder)}
    return tuple(rules[name] for name in sorted(rules))


_USE = "tell what went wrong by what it says"


def _hint(folder: Path) -> str:
    return f"if you trust it, name a copy of your own: cp -r {shlex.quote(str(folder))} my-rules"


@functools.cache
def own_rules() -> tuple[Rule, ...]:
    """Return the rules that ship with clusterkit."""
    return read_rules(FOLDER)


def read_rules(folder: Path) -> tuple[Rule, ...]:
    """Return the rules of a folder, by name.

    Raises:
        UserError: there is no such folder, or a file in it is no rule.
    """
    if folder != FOLDER:
        ownership.require_own(folder, use=_USE, hint=_hint(folder))
    paths = sorted((*folder.glob("*.yaml"), *folder.glob("*.yml")))
    if not paths:
        raise UserError(
            f"{folder} holds no rules",
            hint="a rule is a file NAME.yaml; `clusterkit diagnose --list-rules` lists ours",
        )
    found: list[Rule] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            found.append(read_rule(path))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems=problems)
    return tuple(found)


def read_rule(path: Path) -> Rule:
    """Return the rule that stands in a file; its name is that of the file.

    Raises:
        UserError: it is none; all problems at once.
    """
    try:
        # Safe: CSafeLoader builds plain values only.
        text = _bytes_of(path).decode()
        document = yaml.load(text, Loader=_LOADER)  # noqa: S506
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    if not _ID.fullmatch(path.stem):
        raise UserError(f"{path}: a rule's name is in lower case, such as cuda-out-of-memory.yaml")
    try:
        return _RULE.validate_python(_named(path.stem, document), context=path.parent == FOLDER)
    except ValidationError as error:
        raise UserError(problems=[_problem(path, detail) for detail in error.errors()]) from error


def _bytes_of(path: Path) -> bytes:
    if path.parent == FOLDER:
        return path.read_bytes()  # whoever installed it is trusted
    return ownership.read_own(path, use=_USE, hint=_hint(path.parent))


def _problem(path: Path, detail: Any) -> Problem:
    key = ".".join(str(part) for part in detail["loc"]).removesuffix(": ")
    if detail["type"] == "unexpected_keyword_argument":
        known = did_you_mean(key, {one.name for one in fields(Rule)} - {"id"})
        return Problem(message=f"{path}: unknown key {key!r}", hint=known)
    message = str(detail["msg"]).removeprefix("Value error, ")
    return Problem(message=f"{path}: {key}: {message}" if key else f"{path}: {message}")


def _named(name: str, document: Any) -> Any:
    """Return the document of a rule with its name; a name in it is a key that nobody knows."""
    if not isinstance(document, dict):
        return document
    keys = {("id: " if key == "id" else key): value for key, value in document.items()}
    return {**keys, "id": name}
