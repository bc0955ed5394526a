"""What a check says of a node: the verdict, why, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote_path
from clusterkit.transport.probe import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a check says of one node; equal results are folded into one finding."""

    verdict: Verdict
    summary: str
    evidence: str = ""
    """May differ between nodes without keeping them from being folded."""
    hint: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do about a fault, for results that share it."""

    hint: str = ""
    command: str = ""

    def fail(self, summary: str, evidence: str = "") -> Result:
        """Return the result that the node is not to be used."""
        return self.result(Verdict.FAIL, summary, evidence)

    def warn(self, summary: str, evidence: str = "") -> Result:
        """Return the result that the node is slower or less safe than it could be."""
        return self.result(Verdict.WARN, summary, evidence)

    def result(self, verdict: Verdict, summary: str, evidence: str = "") -> Result:
        """Return a result with this advice."""
        return Result(
            verdict=verdict,
            summary=summary,
            evidence=evidence,
            hint=self.hint,
            command=self.command,
        )


@lru_cache(maxsize=1 << 12)
def advice(id_: str, case: str = "", **values: object) -> Advice:
    """Return what to do about a fault that check `id_` of this package has found, by `checks.ini`.

    There `hint` and `command` are for all its faults, `hint.CASE` and `command.CASE` for one kind.
    `{name}` in them stands for a value, in commands as one word of the shell.
    """
    texts = texts_of(id_)
    hint, command = (texts.get(f"{key}.{case}", texts.get(key, "")) for key in ("hint", "command"))
    if values:
        hint = hint.format(**values)
        command = command.format(**{name: quote_path(str(value)) for name, value in values.items()})
    return Advice(hint=hint, command=command)


def texts_of(id_: str) -> Mapping[str, str]:
    """Return what `checks.ini` says of a check, by key."""
    return _all_texts()[id_]


@lru_cache
def _all_texts() -> Mapping[str, Mapping[str, str]]:
    parser = ConfigParser(comment_prefixes=(";",), interpolation=None)
    parser.read_string(Path(__file__).with_name("checks.ini").read_text(encoding="utf-8"))
    return {
        id_: {key: text.replace("\n", " ") for key, text in parser.items(id_)}
        for id_ in parser.sections()
    }


def fail(summary: str, evidence: str = "", *, hint: str = "", command: str = "") -> Result:
    """Return the result that the node is not to be used."""
    return Advice(hint=hint, command=command).fail(summary, evidence)


def warn(summary: str, evidence: str = "", *, hint: str = "", command: str = "") -> Result:
    """Return the result that the node is slower or less safe than it could be."""
    return Advice(hint=hint, command=command).warn(summary, evidence)


@lru_cache(maxsize=1 << 12)
def ok(summary: str, evidence: str = "") -> Result:
    """Return the result that nothing is wrong."""
    return Result(verdict=Verdict.PASS, summary=summary, evidence=evidence)


@lru_cache(maxsize=1 << 12)
def skip(summary: str) -> Result:
    """Return the result that the check does not apply."""
    return Result(verdict=Verdict.SKIP, summary=summary)


def unknown(summary: str) -> Result:
    """Return the result that it could not be determined."""
    return Result(verdict=Verdict.UNKNOWN, summary=summary)


def missing(facts: Missing) -> Result:
    """Return the result for facts that are missing."""
    return Result(verdict=facts.verdict, summary=facts.reason)


Results = Iterator[tuple[str | None, Result]]
"""Node and result; None for a result about the job as a whole."""
