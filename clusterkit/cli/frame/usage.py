"""Words that are no command line of ours: what to type instead, and whether JSON was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from typer.exceptions import TyperException

from clusterkit.cli.frame.foreign_flags import is_foreign, ours, takes_value
from clusterkit.core.errors import UserError

_NO_NUMBER = ("is not a valid int range.", "is not a valid int.")


def usage_error(error: TyperException, words: Sequence[str]) -> UserError:
    """Return what typer has against `words` as an error of ours, with what to type next."""
    message, _, guess = error.format_message().partition(" Did you mean ")
    for phrase in _NO_NUMBER:
        message = message.replace(phrase, "is not a whole number")
    context: Any = getattr(error, "ctx", None)
    option: str | None = getattr(error, "option_name", None)
    hint = f"did you mean {guess}" if guess else None
    if option is not None and hasattr(error, "possibilities"):
        message = f"no such option: {option}"
        hint = _option_hint(option, words, context, getattr(error, "possibilities", None) or ())
    path = context.command_path if context is not None else _path(words)
    message = message[:1].lower() + message[1:].rstrip(".")
    return UserError(message, hint=hint or f"{path} --help")


def wants_json(words: Sequence[str], command: Any) -> bool:
    """Tell whether `--json` stands among the options of `command`, read as far as it is right.

    What stands behind the script of a job belongs to the script, and so does its `--json`.
    """
    options = _options(command)
    remaining = iter(range(len(words)))
    for index in remaining:
        word = words[index]
        if word == "--json":
            return True
        if word == "--":
            return False
        if word.startswith("-") and word != "-":
            if _has_value_behind(word, options):
                next(remaining, None)
        elif hasattr(command, "get_command"):
            verb = command.get_command(None, word)
            rest = words[index + 1 :]
            return "--json" in rest if verb is None else wants_json(rest, verb)
        elif command.context_settings.get("allow_interspersed_args") is False:
            return False
    return False


def _option_hint(
    option: str, words: Sequence[str], context: Any, possibilities: Sequence[str]
) -> str | None:
    known = _options(context.command) if context is not None else {}
    instead = ours(option, words, known)
    if instead is not None:
        return instead
    return f"did you mean {' or '.join(possibilities)}?" if possibilities else None


def _options(command: Any) -> Mapping[str, Any]:
    return {name: param for param in command.params for name in param.opts if name[:1] == "-"}


def _has_value_behind(word: str, options: Mapping[str, Any]) -> bool:
    name, equals, _ = word.partition("=")
    short = word[:2]
    if equals or (len(word) > 2 and short in options and name not in options):
        return False
    if name not in options:
        if is_foreign(name):
            return takes_value(name)
        # It is read like the option that it resembles.
        name = next(iter(get_close_matches(name, options, n=1)), name)
    return name in options and not getattr(options[name], "is_flag", True)


def _path(words: Sequence[str]) -> str:
    verb = next((word for word in words if not word.startswith("-")), "")
    return f"clusterkit {verb}".strip()
