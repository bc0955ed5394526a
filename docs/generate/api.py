"""What Python code may call, from its docstrings (by Sphinx's autodoc)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import clusterkit
from clusterkit.core import errors
from docs.generate.page import Page, blocks, fenced

_INTRO = (
    "`import clusterkit` offers these, and nothing else is promised. Each function is the verb of "
    "the same name: [how to use them](../how-to/python.md)."
)


def pages(root: Path) -> Iterator[Page]:
    """Yield the one page of this module."""
    del root
    parts = []
    for name in (name for name in clusterkit.__all__ if name != "__version__"):
        home = "clusterkit.core.errors" if hasattr(errors, name) else "clusterkit.api"
        kind = "class" if name[0].isupper() else "function"
        kind = "exception" if name.endswith(("Error", "Warning")) else kind
        lines = [f".. auto{kind}:: {home}.{name}"]
        lines += ["   :members:"] if kind == "class" else []
        parts.append((kind, "\n".join(lines)))
    order = {
        "function": "Functions",
        "class": "What they return",
        "exception": "Errors and warnings",
    }
    sections = (
        (f"## {title}", *(fenced(text, "{eval-rst}") for kind, text in parts if kind == wanted))
        for wanted, title in order.items()
    )
    yield Page(
        path="reference/python.md",
        text=blocks("# Python API", _INTRO, *(part for section in sections for part in section)),
    )
