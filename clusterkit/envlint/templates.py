"""Hide what is filled in before a text is used: Jinja, Helm, `${...}` in YAML or HCL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from clusterkit.envlint.setting import Format, Setting, Slip

_EXPRESSION = re.compile(
    r"\$?\{\{(?:[^{}\n]|\{[^{}\n]*\})*\}\}"  # no line end: a shell has {{ and }} of its own
    r"|\{\{-?\s?/\*[^*]*\*/\s?-?\}\}|\{%[-+]?\s[^{}]{0,2000}?%\}|\{#-?\s[^#]*#\}"
    r"|<%(?:[^%\n<]|%(?!>)|<(?!%))*+%>"
)
_HIDDEN = "\ue000"
"""A private character of Unicode: YAML allows it, and no value has it."""
_FILLED = {
    Format.YAML: re.compile(r"\$[\w{(]"),
    Format.TOML: re.compile(r"[$%]\{"),
}
"""What Kubernetes, compose, envsubst and Terraform put values in for."""


def hide(text: str) -> str:
    """Return a text with each template expression as a stand-in; no line gets another number."""
    if "{{" not in text and "{%" not in text and "<%" not in text:
        return text
    hidden = _EXPRESSION.sub(lambda found: re.sub(r"[^\n]", _HIDDEN, found[0]), text)
    # A line of expressions only is one of the template, and none of what it makes.
    return re.sub(rf"(?m)^[ \t]*{_HIDDEN}[{_HIDDEN} \t]*$", "", hidden)


def unknown(settings: Iterable[Setting]) -> Iterator[Setting]:
    """Yield the settings; a value that is filled in later is nobody's yet."""
    for setting in settings:
        value = setting.value or ""
        filled = _FILLED.get(setting.format)
        if _HIDDEN in setting.name:
            continue
        if _HIDDEN in value or (filled is not None and filled.search(value)):
            slips = tuple(slip for slip in setting.slips if slip is not Slip.UNEXPANDED)
            yield replace(setting, value=None, slips=slips)
        else:
            yield setting


def without_comments(text: str) -> str:
    """Return a Dockerfile whose comments between continued lines end no instruction.

    Source: Dockerfile reference, "Format": such lines are removed before it is read.
    """
    lines = text.split("\n")
    for index in range(1, len(lines)):
        if lines[index - 1].rstrip().endswith("\\") and lines[index].lstrip(" \t").startswith("#"):
            lines[index] = "\\"
    return "\n".join(lines)
