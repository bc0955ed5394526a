"""The command line: a page for each verb, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import typer

from clusterkit.cli.frame.main import PANELS, VERBS, app
from docs.generate.page import Page, anchor, blocks, code, fenced, prose, table

_HEAD = ("option", "meaning")
_VERBS = ("verb", "what it does")


@cache
def commands() -> Mapping[str, Any]:
    """Return every command by its words, such as `images build`; a group comes before its own."""
    whole: Any = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for verb in VERBS:
        found[verb] = whole.get_command(None, verb)
        below: Mapping[str, Any] = getattr(found[verb], "commands", {})
        found |= {f"{verb} {name}": c for name, c in below.items() if not c.hidden}
    return found


def pages(root: Path) -> Iterator[Page]:
    """Yield the list of verbs, and the page of each."""
    del root
    every = commands()
    yield Page(path="reference/cli/index.md", text=_index(every))
    for verb in VERBS:
        mine = {words: every[words] for words in every if words.split()[0] == verb}
        parts = [_command(words, command) for words, command in mine.items()]
        yield Page(path=f"reference/cli/{verb}.md", text=blocks(*parts))


def _index(every: Mapping[str, Any]) -> str:
    whole: Any = typer.main.get_command(app)
    panels: dict[str, list[tuple[str, str]]] = {}
    for words, command in every.items():
        row = (f"[`{words}`](#cli-{_slug(words)})", prose(_first_line(command)))
        panels.setdefault(PANELS[words.split()[0]], []).append(row)
    return blocks(
        "# Command line",
        "Every verb with every flag, from the program itself. `clusterkit VERB --help` says the "
        "same.",
        *(blocks(f"## {name}", table(_VERBS, rows)) for name, rows in panels.items()),
        "## For all verbs",
        _options(whole),
        "Every verb takes `--json`: [one document on stdout](../json.md), everything else on "
        "stderr. [Exit codes](../exit-codes.md) are the same everywhere. `-h` and `--help` show "
        "the page of a verb.",
        fenced("\n".join((":hidden:", "", *VERBS)), "{toctree}"),
    )


def _command(words: str, command: Any) -> str:
    context = command.context_class(command, info_name=f"clusterkit {words}")
    usage = " ".join(("clusterkit", words, *command.collect_usage_pieces(context)))
    level = "##" if " " in words else "#"
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    rows = (
        (code(param.make_metavar(context)), prose(getattr(param, "help", "") or ""))
        for param in arguments
    )
    return blocks(
        anchor(f"cli-{_slug(words)}"),
        f"{level} clusterkit {words}",
        _text(inspect.cleandoc(command.help or "")),
        fenced(usage),
        table(("argument", "meaning"), rows),
        _options(command),
        _epilog(command),
    )


def _options(command: Any) -> str:
    """Return the options of a command: a table for each of its panels."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for param in command.params:
        if param.param_type_name == "option" and not getattr(param, "hidden", False):
            name = getattr(param, "rich_help_panel", None) or "Options"
            panels.setdefault(name, []).append(_option(param))
    # As the help pages have it, those of no panel first.
    ordered = sorted(panels.items(), key=lambda panel: panel[0] != "Options")
    named = len(ordered) > 1
    return blocks(
        *(blocks(f"**{name}**" if named else "", table(_HEAD, rows)) for name, rows in ordered)
    )


def _option(param: Any) -> tuple[str, str]:
    value = "" if getattr(param, "is_flag", False) else param.metavar or param.type.name.upper()
    words: list[str] = [*param.opts, *param.secondary_opts]
    names = ", ".join(map(code, (f"{words[0]} {value}".rstrip(), *words[1:])))
    meaning = prose(param.help or "")
    if param.envvar:
        meaning += f" Variable: {code(str(param.envvar))}."
    default = param.default
    if default not in {None, False, True, ()} and param.show_default and not callable(default):
        meaning += f" Default: {code(str(default))}."
    return names, meaning


def _text(text: str) -> str:
    """Return the help of a command: paragraphs, and lines to type, which are indented there."""
    found = []
    for part in re.split(r"\n\s*\n", text.replace("\b\n", "")):
        typed = all(line.startswith(("clusterkit ", " ")) for line in part.splitlines())
        found.append(fenced(inspect.cleandoc(part), "console") if typed else prose(part))
    return blocks(*found)


def _epilog(command: Any) -> str:
    label, _, typed = (command.epilog or "").partition(": ")
    return blocks(f"{label}:", fenced(f"$ {typed}", "console")) if typed else ""


def _first_line(command: Any) -> str:
    return (command.help or "").strip().partition("\n")[0]


def _slug(words: str) -> str:
    return words.replace(" ", "-")
