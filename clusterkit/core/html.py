"""Reports as one page of HTML that loads nothing: how templates render, and what they allow."""

from __future__ import annotations

import base64
import hashlib
import re

import jinja2
from markupsafe import Markup

from clusterkit.core.data import data_dir
from clusterkit.core.hosts.hostlist import fold_set

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Also marks that turn the direction of writing, and halves of characters that no file can hold."""


def environment() -> jinja2.Environment:
    """Return what renders `templates/pages/`; it escapes every value."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_dir("templates/pages")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    found.filters["fold"] = fold_set
    return found


def policy(style: str, script: str = "") -> str:
    """Return a policy under which nothing is loaded, and no other script or style counts."""
    scripts = f"script-src {_digest(script)}; " if script else ""
    return (
        f"default-src 'none'; style-src {_digest(style)}; {scripts}"
        "base-uri 'none'; form-action 'none'"
    )


def _printable(value: object) -> object:
    """Replace what would not be seen, or would make other text look different."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _CONTROL.sub("\ufffd", value)
    return value


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
