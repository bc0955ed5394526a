"""The types of the keys in our files: what is accepted, and what it becomes.

Values arrive as the text that the user wrote, from YAML and from the environment alike.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from clusterkit.config import units
from clusterkit.core.errors import UserError
from clusterkit.core.hosts.hostlist import MAX_NAMES, expand, fold_set
from clusterkit.core.model import (
    ClusterKind,
    ContainerRuntime,
    GpuRequest,
    HorovodController,
    RequeueOn,
    ShareRuns,
)
from clusterkit.core.notification import FORMS, FORMS_OF_HANG, parse_hang, parse_way

MAX_HOSTS = 4 * MAX_NAMES
"""Of all clusters of a file together."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OPTION = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
_SETTING = re.compile(r"[a-z][a-z0-9_]*\.[A-Za-z][A-Za-z0-9_-]*", re.ASCII)
_LOGIN = re.compile(r"(\w[\w.-]*@)?\w[\w.-]*(:[1-9]\d{0,4})?", re.ASCII)
_NODES = re.compile(r"[1-9]\d{0,5}(:[1-9]\d{0,5})?", re.ASCII)
_SLOTS = re.compile(r"[1-9]\d{0,3}(,[1-9]\d{0,3})*", re.ASCII)


class ValueProblemError(ValueError):
    """A value that cannot be used, with what to write instead."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        """Hold a sentence about the value and a hint."""
        self.hint = hint
        super().__init__(message)


@contextmanager
def _hinted(hint: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueProblemError(str(error), hint) from error


def _one_line(text: str) -> str:
    if not text.strip():
        raise ValueProblemError("the value is empty", "leave the key out, or give it a value")
    if not text.isprintable():
        raise ValueProblemError("a line break or control character is not allowed here")
    return text.strip()


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueProblemError("a NUL character cannot be handed to a program")
    return text


def _time(text: str) -> str:
    with _hinted(units.time_hint(text)):
        units.parse_time_limit(text)
    return text.strip()


def _memory(text: str) -> str:
    with _hinted(f"write {units.MEMORY_FORMS}"):
        units.parse_memory(text)
    # Slurm refuses the B of `64GB`.
    return re.sub(r"i?b$", "", text.strip(), flags=re.IGNORECASE)


def _shm_size(text: str) -> str:
    return text if text == "host" else _memory(text)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_words(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError as error:
        raise ValueProblemError(f"{value!r} has an open quote", "or write a YAML list") from error


def _pairs(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return value
    if bad := [item for item in value if "=" not in item]:
        raise ValueProblemError(f"{bad[0]!r} has no '='", "write NAME=VALUE, or a mapping")
    return dict(item.split("=", 1) for item in value)


def component_pairs(value: Any) -> Any:
    """Return the keys of a component that is written `nodes=2,partition=gpu`; others as they are.

    Raises:
        ValueProblemError: a part has no `=`.
    """
    if not isinstance(value, str):
        return value
    # A comma belongs to a value, unless another key follows.
    parts = re.split(r",(?=[A-Za-z][\w.-]*=)", value)
    if bad := [part for part in parts if "=" not in part]:
        raise ValueProblemError(f"{bad[0]!r} has no '='", "nodes=2,partition=gpu,gpus-per-node=8")
    return dict(part.split("=", 1) for part in parts)


def _options(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    options = {name.lstrip("-"): "" if text is None else text for name, text in value.items()}
    for name in options:
        if not _OPTION.fullmatch(name):
            raise ValueProblemError(
                f"{name!r} is not a long option of sbatch", "write it without dashes: mail-type"
            )
    return options


def _option_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_options(dict.fromkeys(names)))


def _ports(value: Any) -> Any:
    is_pair = isinstance(value, list) and [*map(type, value)] == [str, str]
    text = "-".join(value) if is_pair else value
    if not isinstance(text, str):
        return value
    with _hinted(f"write {units.PORTS_FORMS}"):
        return units.parse_port_range(text)


@dataclass(slots=True)
class Room:
    """How many hosts a file may still name: a few characters stand for tens of thousands."""

    left: int = MAX_HOSTS

    def take(self, names: Sequence[str]) -> Sequence[str]:
        """Return the names, where there is room for them.

        Raises:
            ValueProblemError: there is none.
        """
        self.left -= len(names)
        if self.left < 0:
            raise ValueProblemError(
                f"the clusters of this file name more than {MAX_HOSTS:,} hosts",
                "keep clusters that are not used together in files of their own",
            )
        return names


def _hosts(value: Any, info: ValidationInfo) -> Any:
    items = _as_list(value)
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        return value
    room = info.context if isinstance(info.context, Room) else Room()
    room.take(())
    names = [name for item in items for name in room.take(_expand(item))]
    if not names:
        raise ValueProblemError("hosts names no host", "write a hostlist such as n[1-4], or a list")
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueProblemError(f"hosts named twice: {fold_set(repeated)}", "name each host once")
    return names


def _excluded(value: Any) -> Any:
    items = _as_list(value)
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        return value
    return list(dict.fromkeys(name for item in items for name in _expand(item)))


def _expand(text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except UserError as error:
        problem = error.problems[0]
        raise ValueProblemError(f"{text!r}: {problem.message}", problem.hint) from error


def _matching(pattern: re.Pattern[str], message: str, hint: str) -> AfterValidator:
    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueProblemError(f"{text!r} {message}", hint)
        return text

    return AfterValidator(check)


def _names_node(words: tuple[str, ...]) -> tuple[str, ...]:
    if words and not any("{node}" in word for word in words[1:]):
        raise ValueProblemError("the command does not name {node}", "sudo drain-node {node}")
    return words


def _way(text: str) -> str:
    with _hinted(f"write {FORMS}"):
        parse_way(text)
    return text


def _hanging(texts: tuple[str, ...]) -> str | tuple[str, ...]:
    with _hinted(f"write {FORMS_OF_HANG}"):
        _, tell = parse_hang(texts)
        if len(texts) > len(tell) + 1:
            raise ValueError("one action is enough")
    return texts[0] if len(texts) == 1 else texts


def _joined(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return value


def _settings(settings: Mapping[str, str]) -> Mapping[str, str]:
    for key in settings:
        if not _SETTING.fullmatch(key):
            raise ValueProblemError(
                f"{key!r} names no option", "write sbatch.KEY or FRAMEWORK.KEY, without dashes"
            )
    return settings


def _hostlist(text: str) -> str:
    _expand(text)
    return text


def _one_text(hint: str) -> BeforeValidator:
    """Refuse a list or a mapping where its elements would go into one text."""

    def refuse(value: Any) -> Any:
        if isinstance(value, list | dict):
            what = "a list" if isinstance(value, list) else "a mapping"
            raise ValueProblemError(f"one text is wanted, not {what}", hint)
        return value

    return BeforeValidator(refuse)


Text = Annotated[str, AfterValidator(_one_line)]
Lines = Annotated[str, AfterValidator(_no_nul)]
Count = Annotated[int, Field(ge=1, le=100_000)]
CountOrZero = Annotated[int, Field(ge=0, le=100_000)]
Price = Annotated[float, Field(gt=0, le=1_000_000)]
Port = Annotated[int, Field(ge=1, le=65535)]
LoginNode = Annotated[
    str,
    _matching(
        _LOGIN, "is not a login node", "write [USER@]HOST[:PORT], or a name of ~/.ssh/config"
    ),
]
TimeLimit = Annotated[str, AfterValidator(_time)]
Memory = Annotated[str, AfterValidator(_memory)]
ShmSize = Annotated[str, AfterValidator(_shm_size)]
PortRange = Annotated[tuple[int, int], BeforeValidator(_ports)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_as_list)]
ShellLines = Annotated[tuple[Lines, ...], BeforeValidator(_as_list)]
Words = Annotated[tuple[Lines, ...], BeforeValidator(_as_words)]
DrainCommand = Annotated[Words, AfterValidator(_names_node)]
_Notification = Annotated[Text, AfterValidator(_way)]
Notifications = Annotated[tuple[_Notification, ...], BeforeValidator(_as_list)]
Hanging = Annotated[tuple[Text, ...], BeforeValidator(_as_list), AfterValidator(_hanging)]
_Mount = Annotated[Text, _matching(units.MOUNT, "is not a mount", f"write {units.MOUNT_FORMS}")]
Mounts = Annotated[tuple[_Mount, ...], BeforeValidator(_as_list)]
VariableName = Annotated[
    str, _matching(_NAME, "is not a name for an environment variable", "letters, digits and _ only")
]
VariableNames = Annotated[tuple[VariableName, ...], BeforeValidator(_as_list)]
Environment = Annotated[dict[VariableName, Lines], BeforeValidator(_pairs)]
Options = Annotated[dict[str, Lines], BeforeValidator(_options)]
OptionNames = Annotated[tuple[Text, ...], BeforeValidator(_as_list), AfterValidator(_option_names)]
Settings = Annotated[dict[str, Lines], BeforeValidator(_pairs), AfterValidator(_settings)]
_Component = Annotated[dict[str, Lines], BeforeValidator(component_pairs)]
Components = Annotated[tuple[_Component, ...], BeforeValidator(_as_list)]
Hosts = Annotated[tuple[str, ...], BeforeValidator(_hosts)]
Excluded = Annotated[tuple[str, ...], BeforeValidator(_excluded)]
NodeCount = Annotated[
    str, _matching(_NODES, "is not a number of nodes", "a number from 1 up, or MIN:MAX")
]
Slots = Annotated[
    str,
    BeforeValidator(_joined),
    _matching(
        _SLOTS, "is not a number of GPUs per node", "a number from 1 up, or one per node: 8,8,4"
    ),
]
Hostlist = Annotated[str, BeforeValidator(_joined), AfterValidator(_hostlist)]
Array = Annotated[Text, _one_text("array: 'x=1,2', or the name of a file")]
Elements = Annotated[Text, _one_text("elements: 0-1")]
Kind = ClusterKind
GpuOption = GpuRequest
Controller = HorovodController
Runtime = ContainerRuntime
Readers = ShareRuns
Failures = RequeueOn
Preflight = Literal["auto", "full", "off"]
OnIdle = Literal["warn", "cancel"]
HostKeys = Literal["known", "accept-new"]
Flag = bool
