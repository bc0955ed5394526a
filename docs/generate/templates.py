"""The templates, and what stands in them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from jinja2 import meta

from clusterkit.core import model
from clusterkit.launch import render
from docs.generate.page import Page, blocks, code, prose, table

_COMMENT = re.compile(r"^\s*(?:#|//|/\*|\{##)+\s*(.+?)\s*(?:\*/|##\})?\s*$")

_OF_JOBS = "scripts"
"""The folder whose templates a site may shadow, by their names below it."""
_OF_A_PLAN = (model.LaunchPlan, model.NodeCommand, model.ContainerPlan)


def pages(root: Path) -> Iterator[Page]:
    """Yield the one page of this module."""
    folder = root / "templates"
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    scripts = folder / _OF_JOBS
    rendered = sorted(scripts.rglob("*.j2"))
    variables = (_listed(_variables(path)) for path in rendered)
    others = (path for path in files if path not in rendered)
    yield Page(
        path="reference/templates.md",
        text=blocks(
            "# Templates",
            "What `clusterkit render` fills in, and what it writes beside it. A folder of your "
            "own may shadow the rendered files: [how](../how-to/templates.md).",
            "## Rendered files and their variables",
            table(
                ("template", "variables"),
                zip((code(_name(path, scripts)) for path in rendered), variables, strict=True),
            ),
            "## Filters",
            f"An expression without one of these does not render: {_listed(render.FILTERS)}.",
            "## The plan",
            "`plan` is a `LaunchPlan`, `plan.cluster` a `ClusterSpec`, `plan.command` a "
            "`NodeCommand`, `plan.container` a `ContainerPlan` or nothing.",
            *(part for kind in _OF_A_PLAN for part in _fields(kind)),
            "## Other files",
            "Programs and settings that rendered files hold or call. Nothing shadows these.",
            table(
                ("file", "what it is"),
                ((code(_name(path, folder)), prose(_about(path))) for path in others),
            ),
        ),
    )


def _name(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(code, names))


def _variables(path: Path) -> list[str]:
    environment = render.strict_environment()
    return sorted(meta.find_undeclared_variables(environment.parse(path.read_text("utf-8"))))


def _fields(kind: type) -> Iterator[str]:
    """Yield the fields of a dataclass with the texts below them, which only its source has."""
    (parsed,) = ast.parse(inspect.getsource(kind)).body
    body = parsed.body if isinstance(parsed, ast.ClassDef) else []
    rows = []
    for index, node in enumerate(body):
        if not isinstance(node, ast.AnnAssign):
            continue
        after = body[index + 1] if index + 1 < len(body) else None
        text = after.value if isinstance(after, ast.Expr) else None
        about = str(text.value) if isinstance(text, ast.Constant) else ""
        rows.append(
            (code(ast.unparse(node.target)), code(ast.unparse(node.annotation)), prose(about))
        )
    yield f"### {kind.__name__}"
    yield prose(inspect.getdoc(kind) or "")
    yield table(("field", "type", "meaning"), rows)


def _about(path: Path) -> str:
    """Return the first sentence that a file says of itself; "" where it says nothing."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    for line in text.splitlines()[:4]:
        found = _COMMENT.match(line)
        if found and not found[1].startswith(("!", "shellcheck")):
            return found[1]
    return ""
