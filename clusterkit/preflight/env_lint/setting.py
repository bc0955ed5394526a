"""A setting: one variable that a script, a file or the environment gives a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

Branch = tuple[tuple[int, int], ...]
"""The arms (number of the `if` or `case`, number of its arm) that a line stands in."""


class Format(StrEnum):
    """How a text gives variables."""

    SHELL = "shell"
    ENV_FILE = "env-file"
    """`NAME=VALUE` lines, as `docker run --env-file` and the output of `env` have them."""
    PAM = "pam-env"
    """/etc/environment: NAME=VALUE lines that pam_env puts into the environment of each login."""
    CONF = "conf"
    """`~/.nccl.conf`, `/etc/nccl.conf`: NAME=VALUE lines that NCCL reads itself."""
    TOML = "toml"
    """`NAME = "VALUE"` lines, as TOML, HCL and files of programs' own have them."""
    YAML = "yaml"
    """Mappings `NAME: VALUE`, as compose, Kubernetes and clusterkit have them."""
    ENVIRONMENT = "environment"
    """Variables as a process has them, or as a configuration gives them."""


class Mistake(StrEnum):
    """What went wrong in writing a setting down."""

    NOT_EXPORTED = "not-exported"
    CHAIN_ENDED = "chain-ended"
    """Not exported, because the `export ... \\` on the lines before ends too early."""
    SPACED = "spaced"
    QUOTES_KEPT = "quotes-kept"
    EXPORT_KEPT = "export-kept"
    COMMENT_KEPT = "comment-kept"
    UNEXPANDED = "unexpanded"
    CARRIAGE_RETURN = "carriage-return"
    """The first of those in lines that end as Windows ends them."""
    OWN = "own"
    """No mistake: the text itself reads the name, so nobody else has to know it."""


class Trait(StrEnum):
    """What a text tells of the runs that it starts."""

    MEASURES = "measures"
    """It runs programs of nccl-tests and trains nothing."""
    ONE_MACHINE = "one-machine"
    AMD = "amd"
    """It runs on AMD's GPUs, so that RCCL reads what NCCL would."""
    DETERMINISTIC = "deterministic"
    """Its results have to be the same each time."""
    SOURCES = "sources"
    """It reads another script, which may have exported what it changes."""
    GOOGLE = "google"
    """It uses a plug-in of Google's, whose guide asks for much that is a mistake elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A variable that is given a value, and where."""

    name: str
    value: str | None
    """None where only running the script would tell."""
    source: str = ""
    """File, or what else it came from."""
    line: int | None = None
    """From 1; None where there are no lines."""
    format: Format = Format.ENVIRONMENT
    mistakes: tuple[Mistake, ...] = ()
    branch: Branch = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Everything that one text, or the environment, sets."""

    name: str
    format: Format
    settings: tuple[Setting, ...]
    notes: tuple[str, ...] = ()
    """What could not be read as it was meant, with the line."""
    traits: tuple[Trait, ...] = ()


def reachable(arms: Mapping[int, int], branch: Branch) -> bool:
    """Tell whether a run that takes these arms (block -> arm) can come by `branch`."""
    return all(arms.get(block, arm) == arm for block, arm in branch)
