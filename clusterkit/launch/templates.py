"""Jinja as strict as it gets: a value enters a rendered file through a filter, or not at all.

Templates come from `templates/scripts/` of the repository; a folder of the site may shadow any of
them. An expression without a filter, or with an unknown name, does not render.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from traceback import walk_tb
from typing import Any

import jinja2
import yaml

from clusterkit.config.sources import trusted_owners
from clusterkit.core import ownership, shell
from clusterkit.core.data import data_dir
from clusterkit.core.errors import Position, UserError
from clusterkit.core.text import NOT_IN_A_LINE

_WRONG = (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError)
"""What an expression in a template can raise; all of it is the template's fault."""


def template_path(name: str, shadow: str | None) -> Path:
    """Return the file of template `name`: the one in folder `shadow` if it is there.

    Raises:
        UserError: there is no folder `shadow`.
    """
    if shadow is not None:
        folder = Path(shadow).expanduser()
        if not folder.is_dir():
            raise UserError(
                f"the template folder {shadow} does not exist",
                hint="see templates: in clusterkit config show --origin",
            )
        if (folder / name).is_file():
            return folder / name
    return data_dir("templates/scripts") / name


def render_template(path: Path, **values: Any) -> str:
    """Return the text of the template at `path`.

    Raises:
        UserError: the template is wrong, with its line, or somebody else can write it.
    """
    try:
        source = _source(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"template {path} cannot be read: {error}") from error
    try:
        return _compiled(source).render(**values)
    except jinja2.TemplateSyntaxError as error:
        raise _template_error(path, source, error.lineno, error.message or str(error)) from error
    except _WRONG as error:
        raise _template_error(path, source, _template_line(error), str(error)) from error


def _source(path: Path) -> str:
    """Return a template of ours, or one that shadows it and is the user's own, or root's.

    Trusted as well is whoever owns the configuration that the user named outright. The folder
    counts too: in one that others can write, they choose which of the user's files is read.
    """
    if path.is_relative_to(data_dir("templates")):
        return path.read_text(encoding="utf-8")
    trusted = trusted_owners(Path.cwd(), os.environ)
    use = "write a script from it"
    hint = f"if you trust it, copy the folder and name that: cp -r {shell.quote(str(path.parent))}"
    ownership.require_own(path.parent, use=use, hint=hint, trusted=trusted)
    raw = ownership.read_own(path, use=use, hint=hint, trusted=trusted)
    return raw.decode().replace("\r\n", "\n")


class Quoted(str):
    """Text that has passed a filter and may stand in a rendered file as it is."""

    __slots__ = ()


class UnquotedError(ValueError):
    """An expression in a template reached the output without a filter."""


@lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    """Return the template of a text; an array renders the same ones hundreds of times."""
    return strict_environment().from_string(source)


def strict_environment() -> jinja2.Environment:
    """Return what templates are read with, also by the reference of their variables."""
    environment = jinja2.Environment(  # noqa: S701 # `finalize` is stricter than autoescape
        loader=jinja2.FunctionLoader(lambda _: None),  # no template includes another
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{##",  # `{#` is bash: ${#array[@]}
        comment_end_string="##}",
        finalize=_require_quoted,
    )
    environment.filters.update(FILTERS)
    return environment


def _require_quoted(value: Any) -> str:
    if isinstance(value, jinja2.Undefined | Quoted):
        return str(value)
    raise UnquotedError(f"an expression ({value!r}) has no filter; use one of {', '.join(FILTERS)}")


def _name(value: str) -> Quoted:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", value):
        raise UnquotedError(f"{value!r} is not a name")
    return Quoted(value)


def _directive(value: str) -> Quoted:
    """Return a value of a `#SBATCH` line, from which Slurm reads exactly `value`.

    Slurm is no shell: a backslash takes the next character as it is, inside of either quote as
    well, an open `#` begins a comment, and nothing but a line's end closes an argument for good
    (`_get_argument` in Slurm's src/sbatch/opt.c).
    """
    if (bad := NOT_IN_A_LINE.search(value)) is not None:
        raise UnquotedError(f"{bad[0]!r} cannot stand in a directive")
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./()\[\]{}|&*~<>-]+", value):
        return Quoted(value)
    return Quoted('"' + re.sub(r'(["\\])', r"\\\1", value) + '"')


def _heredoc(value: str, delimiter: str) -> Quoted:
    if delimiter in value.splitlines():
        raise UnquotedError(f"a line {delimiter!r} would end the here-document")
    return Quoted(value.rstrip("\n"))


def _yaml(value: str) -> Quoted:
    # Double-quoted flow scalars on one line; `$` doubled, as Compose would interpolate it.
    text = yaml.safe_dump(value, default_style='"', width=2**31, allow_unicode=True)
    return Quoted(text.strip().replace("$", "$$"))


FILTERS: Mapping[str, Any] = {
    "sh": lambda word: Quoted(shell.quote(word)),
    "name": _name,
    "comment": lambda value: Quoted(" ".join(value.split())),
    "shell_line": lambda value: Quoted(value.rstrip("\n")),
    "directive": _directive,
    "heredoc": _heredoc,
    "yaml": _yaml,
}
"""Filters by name; each returns `Quoted`, and nothing else may enter a rendered file."""


def _template_error(path: Path, source: str, line: int | None, message: str) -> UserError:
    lines = source.splitlines()
    text = lines[line - 1] if line is not None and 0 < line <= len(lines) else None
    return UserError(
        f"template: {message}",
        position=Position(source=str(path), line=line, text=text),
        hint="see docs/how-to/templates.md for the variables and filters",
    )


def _template_line(error: BaseException) -> int | None:
    frames = walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == "<template>"]
    return lines[-1] if lines else None
