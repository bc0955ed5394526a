"""Words that are no command line of ours: what to type instead, and whether JSON was asked for.

`foreign_flags.tsv` has what people type out of habit, of other launchers and schedulers: commands
(`verb`), and flags: `job` for verbs that start one, `sbatch` for what `--set` hands on (those
without VALUE take none), a verb's own, `training` and `layout` for verbs that only ask about it.
Flags stand there with dashes, and are found with underscores as well.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from shlex import quote
from typing import Any

from typer.exceptions import TyperException

from clusterkit.core.data import read_table
from clusterkit.core.errors import UserError

_NO_VERB = re.compile("No such command '(.*)'\\.?")
_TOO_MANY = re.compile(r"Got unexpected extra argument\(s\) \(([^)]+)")
_NOT_THIS_NUMBER = re.compile(
    r"Invalid value for '(--[\w-]+)'(?:: '(\d{1,9})s')?.*is not a whole number", re.ASCII
)
_TYPING_ERROR = 0.75
_MOST_BEGUN = 3
_NO_NUMBER = ("is not a valid int range.", "is not a valid int.")


def usage_error(error: TyperException, arguments: Sequence[str]) -> UserError:
    """Return what typer has against `arguments` as an error of ours, with what to type next."""
    message, _, guess = error.format_message().partition(" Did you mean ")
    for phrase in _NO_NUMBER:
        message = message.replace(phrase, "is not a whole number")
    context: Any = getattr(error, "ctx", None)
    option: str | None = getattr(error, "option_name", None)
    hint = f"did you mean {guess}" if guess else None
    if option is not None and hasattr(error, "possibilities"):
        message = f"no such option: {option}"
        hint = _option_hint(option, arguments, context)
    path = context.command_path if context is not None else _path(arguments)
    verb = _NO_VERB.fullmatch(message)
    if verb is not None and path == "clusterkit":
        hint = verb_instead(verb[1]) or hint
    elif verb is not None:
        hint = _command_instead(path.removeprefix("clusterkit "), verb[1], path) or hint
    hint = _values_hint(message, path, arguments, context) or hint
    message = message[:1].lower() + message[1:].rstrip(".")
    return UserError(message, hint=hint or f"{path} --help")


def _values_hint(message: str, path: str, arguments: Sequence[str], context: Any) -> str | None:
    """Return what to type where words are missing, too many, or no numbers."""
    too_many = _TOO_MANY.match(message)
    if too_many is not None:
        return _too_many_hint(too_many[1].split(), path, context)
    number = _NOT_THIS_NUMBER.match(message)
    if path == "clusterkit exec" and message.startswith("Missing argument 'COMMAND"):
        return _without_command(arguments[1:], context.command)
    if path == "clusterkit estimate" and message.startswith("Invalid value for '--gpus'"):
        return "one number; leave it out to see the smallest that is enough"
    if path == "clusterkit preflight" and message.startswith("Invalid value for '--nodes'"):
        listed = _value_of("--nodes", arguments) or "LIST"
        return f"a number; nodes by name: --hosts {quote(listed)}"
    if message.startswith("Missing argument 'JOB"):
        return f"{path} latest, or another of those that `clusterkit status` lists"
    return f"a number behind it: {number[1]} {number[2] or 1}" if number is not None else None


def _too_many_hint(extra: Sequence[str], path: str, context: Any) -> str | None:
    if path == "clusterkit report":
        return f"clusterkit status {extra[0]} --usage, of one job"
    if path == "clusterkit shell":
        return f"to run a command: clusterkit exec JOB -- {extra[0]}"
    if "--hosts" in _options(context.command):
        return f"nodes by name: --hosts {quote(','.join(extra))}"
    return None


def _without_command(arguments: Sequence[str], command: Any) -> str:
    """Return what to type where `exec` has one word only: it is a job, or a command without one."""
    word = next((value for option, value in own_words(arguments, command) if not option), None)
    if word is None or shutil.which(word) is not None:
        return in_a_job_or_on_nodes([word or arguments[-1]])
    return f"clusterkit exec {quote(word)} -- COMMAND"


def in_a_job_or_on_nodes(command: Sequence[str]) -> str:
    """Return how a command is run inside a job, and how on the nodes of a cluster."""
    line = shlex.join(command)
    return f"in a job: clusterkit exec JOB -- {line}; on nodes: clusterkit nodes run -- {line}"


def verb_instead(word: str) -> str | None:
    """Return the command of ours that does what `word` does elsewhere; None where there is none."""
    return _command_instead("verb", word, "clusterkit")


def _command_instead(asks: str, word: str, path: str) -> str | None:
    ours, remark = _instead(asks).get(word, ("", ""))
    said = ours if ours.startswith("pip ") else f"{path} {ours}"
    return f"{said}{remark and f' ({remark})'}" if ours else None


def wants_json(arguments: Sequence[str], command: Any) -> bool:
    """Tell whether `--json` stands among the options of `command`, read as far as it is right.

    What stands behind the script of a job belongs to the script, and so does its `--json`.
    """
    return any(word == "--json" for word, _ in own_words(arguments, command))


def own_words(arguments: Sequence[str], command: Any) -> Iterator[tuple[str, str]]:
    """Yield the options of `command` with their values, read as far as they are right.

    A word that is no option comes as a value without one; the last is the script of a job, and what
    stands behind it belongs to that. All behind a verb that there is not are options.
    """
    options = _options(command)
    remaining = iter(range(len(arguments)))
    for index in remaining:
        argument = arguments[index]
        if argument == "--":
            return
        if argument.startswith("-") and argument != "-":
            yield _read(argument, arguments, options, remaining)
        elif hasattr(command, "get_command"):
            verb = command.get_command(None, argument)
            rest = arguments[index + 1 :]
            yield from ((word, "") for word in rest) if verb is None else own_words(rest, verb)
            return
        else:
            yield "", argument
            if command.context_settings.get("allow_interspersed_args") is False:
                return


def _read(
    argument: str, arguments: Sequence[str], options: Mapping[str, Any], remaining: Iterator[int]
) -> tuple[str, str]:
    """Return an option and its value, which may be the next of the `remaining` words."""
    name, equals, value = argument.partition("=")
    if equals:
        return name, value
    if _has_value_behind(argument, options):
        index = next(remaining, None)
        return argument, "" if index is None else arguments[index]
    glued = len(argument) > 2 and argument[:2] in options and argument not in options
    return (argument[:2], argument[2:]) if glued else (argument, "")


def _option_hint(option: str, arguments: Sequence[str], context: Any) -> str | None:
    known = _options(context.command) if context is not None else {}
    # click reads `-ppn` as `-p`
    option = next(
        (word for word in arguments if word in _instead("job") and word[:2] == option), option
    )
    instead = _ours(option, arguments, known)
    if context is not None and context.command_path == "clusterkit estimate":
        instead = _all_gpus(option, arguments) or instead
    if instead is not None:
        return instead
    if context is not None and any(param.name == "command" for param in context.command.params):
        return f"{context.command_path} ... -- COMMAND, if {option} belongs to the command"
    near = _near(option, known)
    return f"did you mean {' or '.join(near)}?" if near else None


def _all_gpus(option: str, arguments: Sequence[str]) -> str | None:
    """Return `--gpus 16` for `--nodes 2 --gpus-per-node 8`; None where the two are not there."""
    if not _instead("training").get(_spelt(option), ("",))[0].endswith("of all nodes"):
        return None
    each = _value_of("--gpus-per-node", arguments) or _value_of("-g", arguments) or ""
    counts = [_value_of(option, arguments) or "", each]
    if not all(re.fullmatch("[0-9]{1,6}", count) for count in counts):
        return None
    return f"--gpus {int(counts[0]) * int(counts[1])}, which are those of all nodes"


def _near(option: str, known: Collection[str]) -> Sequence[str]:
    """Return the `known` options that `option` begins, else the one of which it is a typing error.

    Of options that are merely alike none was meant: `--user` is no `--cluster`.
    """
    word = option.lower().replace("_", "-")
    if not word.startswith("--"):
        return ()
    begun = [name for name in known if name.startswith(word)]
    letters = {name.lstrip("-"): name for name in known if name.startswith("--")}
    alike = get_close_matches(word.lstrip("-"), letters, n=1, cutoff=_TYPING_ERROR)
    return begun[:_MOST_BEGUN] or [letters[name] for name in alike]


def _options(command: Any) -> Mapping[str, Any]:
    return {name: param for param in command.params for name in param.opts if name[:1] == "-"}


def _has_value_behind(argument: str, options: Mapping[str, Any]) -> bool:
    name, equals, _ = argument.partition("=")
    short = argument[:2]
    if equals or (len(argument) > 2 and short in options and name not in options):
        return False
    if name not in options:
        if (takes_value := _takes_value(name)) is not None:
            return takes_value
        # It is read like the option that it resembles.
        name = next(iter(_near(name, options)), name)
    return name in options and not getattr(options[name], "is_flag", True)


def _path(arguments: Sequence[str]) -> str:
    verb = next((argument for argument in arguments if not argument.startswith("-")), "")
    return f"clusterkit {verb}".strip()


_DECIDES = {"--island": "layout", "--micro-batch": "training"}
"""A flag that only one kind of verb has, and that kind."""


@cache
def _instead(asks: str) -> Mapping[str, tuple[str, str]]:
    """Return what to type instead of each flag, its value in capitals, and a remark."""
    rows = read_table(__file__, "foreign_flags.tsv")
    found = {}
    for row in rows:
        if asks in row["asks"].split():
            found.update(dict.fromkeys(row["theirs"].split(), (row["ours"], row["remark"])))
    return found


def _spelt(option: str) -> str:
    """Return a flag as the table has it: torchrun and DeepSpeed take dashes and underscores."""
    return option.replace("_", "-")


def _takes_value(option: str) -> bool | None:
    """Tell whether a word follows this flag of theirs; None where it is none."""
    option = _spelt(option)
    if option in _instead("job"):
        return True
    found = [_instead(asks).get(option) for asks in ("training", "layout", "sbatch")]
    known = [ours[0] for ours in found if ours is not None]
    return any(ours.endswith(("N", "E", "DIR")) for ours in known) if known else None


def _ours(option: str, arguments: Sequence[str], known: Collection[str]) -> str | None:
    """Return what to type instead of `option`, as it stands in `arguments`.

    None where nothing is known of it, or where the verb, whose options are `known`, has no use
    for it.
    """
    typed, option = option, _spelt(option)
    value = _value_of(typed, arguments) if _takes_value(option) else None
    path = _path(arguments)
    for flag, asks in _DECIDES.items():
        if flag in known:
            other = _instead(asks).get(option)
            return _hint(*other, value) if other else None
    own = _instead(path.removeprefix("clusterkit ").replace(" ", "-")).get(option)
    if own is not None and _has(own[0], known):
        value = _value_of(typed, arguments)
        if "WORDS" in own[0]:
            return _with_the_rest(own[0], typed, value, arguments)
        return _hint(own[0].replace("VERB", path), own[1], value)
    if option in _instead("sbatch"):
        instead, remark = _instead("sbatch")[option]
        instead = instead.replace("KEY", option[2:])
    elif option == "--gres" and value is not None and not value.startswith("gpu"):
        instead, remark = "--set sbatch.gres=VALUE", ""
    else:
        instead, remark = _instead("job").get(option, ("", ""))
    usable = instead and "--set" in known and _has(instead, known)
    return _hint(instead, remark, value) if usable else None


def _with_the_rest(instead: str, flag: str, value: str | None, arguments: Sequence[str]) -> str:
    """Return what to type instead of a flag with its value, with all other WORDS as they stand."""
    words = list(arguments[1:])
    at = next(i for i, word in enumerate(words) if word.partition("=")[0] == flag)
    del words[at : at + 1 + (value is not None and "=" not in words[at])]
    return instead.replace("VALUE", quote(value or "10m")).replace("WORDS", shlex.join(words))


def _has(instead: str, known: Collection[str]) -> bool:
    """Tell whether a verb with the options `known` takes what is to be typed instead."""
    flag = instead.partition(" ")[0]
    return not flag.startswith("-") or flag in {"--", *known}


def _hint(instead: str, remark: str, value: str | None) -> str:
    return _filled(instead, value) + (f" ({remark})" if remark else "")


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    for argument, following in zip(arguments, (*arguments[1:], ""), strict=True):
        name, equals, value = argument.partition("=")
        if name == option:
            return value if equals else (following if following[:1] not in {"", "-"} else None)
    return None


def _filled(instead: str, value: str | None) -> str:
    """Put the user's value in the place of the capitals, a number where one is wanted."""
    if value is None or (instead.endswith("=V") and "=" not in value):
        return instead
    if instead.endswith((" N", "zeroN")):
        number = re.search(r"(?<!\d)\d+(:\d+)?$", value)
        return instead[:-1] + number[0].rpartition(":")[2] if number else instead
    return re.sub(r"(?<![A-Z])[A-Z]+(=[A-Z]+)?$", lambda _: value, instead)
