"""Find the verb, run it, and turn every ending into an exit code and a message."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import math
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import option
from clusterkit.config import sources
from clusterkit.core import files
from clusterkit.core.commands import require_utf8
from clusterkit.core.data import read_table
from clusterkit.core.errors import ClusterkitError, RemoteError, UserError
from clusterkit.core.version import __version__

_TABLE = [*read_table(__file__, "verbs.tsv")]
VERBS = {row["verb"]: row["module"] for row in _TABLE if row["module"]}
"""Each verb and its module below `clusterkit.cli`, in the order of the help."""
PANELS = {row["verb"]: row["panel"] for row in _TABLE if row["panel"]}

_EXAMPLES = {row["verb"]: row["example"] for row in _TABLE}
_RELAYED = {row["verb"]: row["relayed"] for row in _TABLE if row["relayed"]}
MARK = "CLUSTERKIT_RELAYED"
"""The variable that tells clusterkit on a login node of which version and cluster the caller is."""

EXIT_FINDINGS = 1
EXIT_COULD_NOT = 2
EXIT_INTERRUPTED = 130

_MOST_PROBLEMS = 12
"""A file that is none of its kind has one in each line."""
_UNWRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What the disk behind stdout may say; for files of ours `files` explains it."""

_OF_A_FILE = frozenset(
    {
        errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR,
        errno.E2BIG, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE,
        errno.EMFILE, errno.ENFILE,
    }
)  # fmt: skip
"""What a system says of a file or program that somebody named, whichever verb met it first."""
_LONGEST_NAME = 120
_HELP = frozenset({"--help", "-h"})
ASKS_NOBODY = _HELP | {"--replay", "--self"}
"""With these a verb asks nobody."""
_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""What `kill`, a scheduler, and the loss of an ssh session send."""
_TIDYING_S = 10.0
"""How long the next of them do nothing. A lost session sends SIGHUP by the kernel and by its shell,
timeout(1) SIGTERM twice, and systemd both: a second KeyboardInterrupt would leave things running
that the first one is about to end. Ctrl-C does not wait."""


class VerbGroup(TyperGroup):
    """A command group that imports a verb's module when that verb is asked for."""

    def __init__(self, **attrs: Any) -> None:
        """Know the verbs by name, so that a misspelt one gets a suggestion."""
        super().__init__(**attrs)
        self.commands = cast(Any, dict.fromkeys(VERBS))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of verb `cmd_name`, or None where there is no such verb."""
        if cmd_name not in self.commands:
            return None
        if self.commands[cmd_name] is None:
            try:
                self.commands[cmd_name] = command_of(cmd_name)
            except ImportError as error:
                if verb_of(sys.argv[1:]) is not None:
                    raise
                return _unloadable(cmd_name, error)  # the help of all is to show the others
        return self.commands[cmd_name]

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; what an interrupt has to tell is told here, as typer drops it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            for left_open in error.args:
                console.error(str(left_open))
            raise


def command_of(name: str) -> Any:
    """Return the command of a verb."""
    attribute = name.replace("-", "_")
    module = importlib.import_module(f"clusterkit.cli.{VERBS[name]}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        settings = getattr(module, "CONTEXT_SETTINGS", None)
        verb = getattr(module, attribute, None) or getattr(module, f"{attribute}_")
        app.command(name, context_settings=settings)(verb)
    command: Any = typer.main.get_command(app)
    command.name, command.rich_help_panel = name, PANELS[name]
    command.epilog = f"Example: {_EXAMPLES[name]}"
    for below, one in getattr(command, "commands", {}).items():
        if not one.hidden:
            one.epilog = f"Example: {_EXAMPLES[f'{name} {below}']}"
    return command


def _unloadable(name: str, error: ImportError) -> Any:
    """Return what stands for a verb in the list of all where its module cannot be loaded."""
    app = typer.Typer(add_completion=False)
    app.command(name, help=f"Cannot be loaded: {error}.")(lambda: None)
    command: Any = typer.main.get_command(app)
    command.rich_help_panel = PANELS[name]
    return command


def _print_version(requested: bool) -> None:
    if requested:
        console.say(f"clusterkit {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=VerbGroup,
    name="clusterkit",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 nothing to report, 1 findings, 2 could not do it, 130 interrupted.",
)


@app.callback()
def root(
    version: Annotated[
        bool,
        option("--version", "Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
    debug: Annotated[
        bool, option("--debug", "Show tracebacks.", envvar="CLUSTERKIT_DEBUG")
    ] = False,
    config_file: Annotated[
        Path | None,
        option(
            "--config-file",
            "Read this file, whoever owns it, instead of the nearest clusterkit.yaml.",
            "FILE",
            envvar="CLUSTERKIT_CONFIG_FILE",
        ),
    ] = None,
) -> None:
    """Take a distributed training job from a script to every node, at full speed."""
    gone = None if _HELP & set(sys.argv) else _no_working_folder()
    if gone is not None:
        raise gone
    if debug:
        os.environ["CLUSTERKIT_DEBUG"] = "1"
    if config_file is not None:
        os.environ["CLUSTERKIT_CONFIG_FILE"] = str(config_file)


@contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt; one that is ignored (`nohup`) stays so."""
    interrupt = _Interrupt()
    before = {
        number: signal.signal(number, interrupt)
        for number in _ENDING
        if signal.getsignal(number) is signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Interrupt:
    """A handler that raises KeyboardInterrupt, and not again while that is heeded."""

    def __init__(self) -> None:
        """Have raised nothing yet."""
        self._raised_at = -math.inf

    def __call__(self, number: int, frame: object) -> None:
        """Heed a signal."""
        del number, frame
        now = time.monotonic()
        if now - self._raised_at >= _TIDYING_S:
            self._raised_at = now
            raise KeyboardInterrupt


def _open_closed() -> None:
    """Let what we were started without (`>&-`) be /dev/null, and no file that is opened later."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # each takes the lowest number that is free: its own
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def main() -> None:
    """Run the command line and exit with its code."""
    _open_closed()
    require_utf8()
    try:
        with ended_as_by_ctrl_c():
            sys.exit(_run())
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:  # the one place that may: a bug must not reach the user raw
        _report_end(error)
        sys.exit(_code_of(error))


def _code_of(error: Exception) -> int:
    if isinstance(error, typer.Abort) and isinstance(error.__context__, KeyboardInterrupt):
        return EXIT_INTERRUPTED  # Ctrl-C at a question
    read = isinstance(error, BrokenPipeError) and _HELP & {*sys.argv}  # enough of the help
    return 0 if read else EXIT_COULD_NOT


def _report_end(error: Exception) -> None:
    match error:
        case typer.Abort():  # a question was not answered, or answered with no
            unanswered = isinstance(error.__context__, KeyboardInterrupt | EOFError)
            console.note("\nnothing done" if unanswered else "nothing done")
        case TyperException():
            if error.format_message():  # without one it was the help, and that has been shown
                from clusterkit.cli.frame.usage import usage_error

                _report(usage_error(error, sys.argv[1:]))
        case ClusterkitError():
            _report(error)
        case BrokenPipeError():
            _give_up_stdout()  # the reader of our output (`| head`) has gone
        case OSError():
            _report_os_error(error)
        case MemoryError():
            _report(UserError("out of memory", hint="give fewer nodes, processes or files at once"))
        case _:
            _report_bug(error)


def _run() -> int | None:
    """Run the verb and return its exit code; what it has printed is on its way.

    Raises:
        BrokenPipeError: the reader of our output has gone.
    """
    try:
        code = _relayed(sys.argv[1:])
        if code is not None:
            return code
        code = cast(int | None, app(prog_name="clusterkit", standalone_mode=False))
        sys.stdout.flush()  # here its failure can still be told
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # typer makes it an exit code of its own
            raise error.__context__ from None
        raise
    return code


def verb_of(arguments: Sequence[str]) -> str | None:
    """Return the verb of a command line; None where options before it are none of ours."""
    remaining = iter(arguments)
    for word in remaining:
        if word == "--config-file":
            next(remaining, None)
        elif not word.startswith("-"):
            return word
        elif word != "--debug" and not word.startswith("--config-file="):
            return None
    return None


def _relayed(arguments: Sequence[str]) -> int | None:
    """Run a verb on a login node and return its exit code; None where it is to run here."""
    mark = os.environ.pop(MARK, None)
    kind = _RELAYED.get(verb_of(arguments) or "")
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if mark is None and (not kind or (kind != "code" and ASKS_NOBODY & set(before))):
        return None  # of a job, which may take the same words, `relay` tells them apart
    named = any(word.startswith("--config-file") for word in arguments)
    if mark is None and not named and not sources.may_have("login", Path.cwd(), os.environ):
        return None  # as for most commands, which load nothing for this
    from clusterkit.cli.frame import relay

    if mark is not None:
        relay.begin_relayed(mark)
        return None
    return relay.relayed(arguments, kind or "")


def _give_up_stdout() -> None:
    # Python would complain of what is left in its buffer once more at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: ClusterkitError) -> None:
    if os.environ.get("CLUSTERKIT_DEBUG"):
        traceback.print_exc()
    if _wants_json():
        console.json_document({"error": error_document(error)})
    if isinstance(error, UserError):
        for problem in error.problems[:_MOST_PROBLEMS]:
            console.error(str(problem))
        if (left := len(error.problems) - _MOST_PROBLEMS) > 0:
            console.note(f"and {left} more errors")
    else:
        console.error(str(error))


def _wants_json() -> bool:
    from clusterkit.cli.frame.usage import wants_json

    return wants_json(sys.argv[1:], typer.main.get_command(app))


def error_document(error: ClusterkitError) -> dict[str, Any]:
    """Return what `--json` tells of an error, under the key `error`."""
    if isinstance(error, UserError):
        return {"problems": [files.plain(problem) for problem in error.problems]}
    if isinstance(error, RemoteError):
        return {"message": error.message, "node": error.node, "hint": error.hint}
    return {"message": str(error)}


def _no_working_folder() -> UserError | None:
    """Return what to say where the folder that this shell is in cannot be used; else None."""
    try:
        Path.cwd()
    except OSError as error:
        why = "has been removed" if error.errno == errno.ENOENT else error.strerror
        return UserError(
            f"the folder that you are in, {os.environ.get('PWD', '.')}: {why}",
            hint='cd to one that is there; one that was made anew under that name: cd "$PWD"',
        )
    return None


def _report_os_error(error: OSError) -> None:
    gone = _no_working_folder()
    if gone is not None:
        _report(gone)
    elif error.filename is not None and error.errno in _OF_A_FILE:
        _report(_unusable(error))
    elif error.filename is not None or error.errno not in _UNWRITTEN:
        _report_bug(error)
    else:
        _give_up_stdout()
        why = error.strerror or str(error)
        _report(UserError(f"cannot write the output: {why}", hint="send it somewhere else"))


def _unusable(error: OSError) -> UserError:
    name = str(error.filename)
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}... ({len(name)} characters)"
    hint = "look at it with `ls -ld`, at your user and groups with `id`, at limits with `ulimit -a`"
    if error.errno == errno.ENAMETOOLONG:
        hint = "names have at most 255 bytes, paths 4,095: give a shorter one"
    if error.errno == errno.E2BIG:
        hint = "the arguments and the environment are too long for a program: write them to a file"
    return UserError(f"cannot use {name}: {error.strerror}", hint=hint)


def _report_bug(error: Exception) -> None:
    if os.environ.get("CLUSTERKIT_DEBUG"):
        traceback.print_exc()
        return
    module = f"clusterkit.cli.{VERBS.get(verb_of(sys.argv[1:]) or '')}"
    # A verb that could not be loaded has no options to read the command line by.
    if _wants_json() if module in sys.modules else "--json" in sys.argv:
        console.json_document({"error": {"message": f"{type(error).__name__}: {error}"}})
    header = f"clusterkit {__version__}\nPython {sys.version}\n{' '.join(sys.argv)}\n\n"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="clusterkit-crash-", suffix=".log", delete=False,
            encoding="utf-8", errors="backslashreplace",
        ) as log:  # fmt: skip
            log.write(header + traceback.format_exc())
        where = f"the traceback is in {log.name}; please report it, or run again with --debug"
    except OSError:  # nowhere to write to
        where = "please report it with what --debug shows"
    missing = _missing_module(error)
    if missing is not None:
        message = f"this Python has no module {missing}, which clusterkit needs"
        console.error(
            f"{message}\nhint: install clusterkit anew, docs/tutorial/install.md; {where}"
        )
    else:
        console.error(f"clusterkit has a bug: {type(error).__name__}: {error}\nhint: {where}")


def _missing_module(error: Exception) -> str | None:
    """Return the module of others that an import did not find; None where that was not it."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    top = error.name.partition(".")[0]
    return None if importlib.util.find_spec(top) else top
