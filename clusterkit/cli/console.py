"""What a verb prints: answers on stdout, everything else on stderr, colour only on a terminal."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from typing import Any

import typer

from clusterkit.files import versioned


def say(text: str = "") -> None:
    """Print part of the answer on stdout."""
    typer.echo(text, color=use_colour(sys.stdout))


def note(text: str) -> None:
    """Print something beside the answer (progress, warnings) on stderr."""
    typer.echo(text, err=True, color=use_colour(sys.stderr))


def warn(text: str) -> None:
    """Print a warning on stderr."""
    note(typer.style("warning: ", fg="yellow", bold=True) + text)


def error(text: str) -> None:
    """Print an error on stderr."""
    note(typer.style("error: ", fg="red", bold=True) + text)


def bold(text: str) -> str:
    """Return `text` in bold; plain where the output is no terminal."""
    return typer.style(text, bold=True)


def dim(text: str) -> str:
    """Return `text` dimmed; plain where the output is no terminal."""
    return typer.style(text, dim=True)


def coloured(text: str, colour: str) -> str:
    """Return `text` in the named ANSI colour; plain where the output is no terminal."""
    return typer.style(text, fg=colour)


def use_colour(stream: Any) -> bool:
    """Tell whether `stream` is a terminal whose user has not set NO_COLOR.

    NO_COLOR counts when set to anything but the empty string (no-color.org).
    """
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR")


def json_document(document: Mapping[str, Any]) -> None:
    """Print the one JSON document of this run, with its schema number first.

    Infinity and what is no number are null: JSON has no words for them.
    """
    told = versioned(document)
    try:
        text = _json(told)
    except ValueError:  # rare, so that large documents are not looked through each time
        text = _json(_known_to_json(told))
    say(text)


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def _known_to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _known_to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_known_to_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
