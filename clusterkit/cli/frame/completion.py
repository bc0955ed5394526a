"""Verbs and values that a shell completes: clusters, jobs, frameworks, models, GPUs, topics.

Flags are left to typer. This answers before typer, or a verb, is loaded, and keeps what takes long
(the configuration, topics, help) in the user's cache: a shell waits for it at every TAB.
Only plain words are handed out, since shells read the answer as code: zsh puts it through `eval`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from clusterkit.core.data import read_table
from clusterkit.core.errors import ClusterkitError
from clusterkit.core.version import __version__

VARIABLE = "_CLUSTERKIT_COMPLETE"
_SHELLS = frozenset({"complete_bash", "complete_zsh", "complete_fish"})
_PLAIN = re.compile(r"[\w./+@%-]{1,100}", re.ASCII)
_NOT_PLAIN = re.compile(r"[^\w ./+@%-]", re.ASCII)
_MOST_JOBS = 30
"""The newest; submissions of more are not read."""
Values = Iterable[tuple[str, str]]
"""Words, each with what fish and zsh show beside it; may be empty."""


def complete(environ: Mapping[str, str]) -> bool:
    """Print the values that fit what is typed; tell False where typer knows more.

    What the shell asks stands in `environ`, as typer's scripts have it (`--show-completion`).
    """
    shell = environ.get(VARIABLE, "")
    if shell not in _SHELLS:
        return False
    words, begun = _typed(environ, shell)
    flag, equals, rest = begun.partition("=")
    before = flag + equals if equals and flag.startswith("--") else ""
    kind = _kind([*words, flag], rest) if before else _kind(words, begun)
    if kind is None:
        return False
    begun = begun.removeprefix(before)
    done, comma, last = begun.rpartition(",") if kind == "checks" else ("", "", begun)
    before += done + comma
    try:
        values = [
            (before + word, _NOT_PLAIN.sub("?", shown[:60]))
            for word, shown in _VALUES[kind]()
            if word.lower().startswith(last.lower()) and _PLAIN.fullmatch(word)
        ]
    except (ClusterkitError, OSError, ValueError):  # a TAB is no place for messages
        values = []
    _print(values, shell, environ)
    return True


def _print(values: Sequence[tuple[str, str]], shell: str, environ: Mapping[str, str]) -> None:
    if shell == "complete_fish" and environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        sys.exit(0 if values else 1)
    if shell == "complete_zsh":
        items = "\n".join(f'"{word}":"{shown or word}"' for word, shown in values)
        text = f"_arguments '*: :(({items}))'" if values else "_files"
    else:
        beside = shell == "complete_fish"
        text = "\n".join(f"{word}\t{shown}" if beside and shown else word for word, shown in values)
    with suppress(OSError):  # who asked has gone
        os.write(sys.stdout.fileno(), f"{text}\n".encode())


def _typed(environ: Mapping[str, str], shell: str) -> tuple[list[str], str]:
    """Return the words behind `clusterkit` that stand there, and the one that is begun."""
    if shell == "complete_bash":
        words = _split(environ.get("COMP_WORDS", ""))
        at = environ.get("COMP_CWORD", "")
        position = int(at) if at.isdecimal() and len(at) < 5 else len(words)
        begun = words[position] if position < len(words) else ""
        words = words[1:position]
        if begun == "=":  # bash takes it for a word of its own
            begun = ""
        return ([*words[:-1]] if words[-1:] == ["="] else words), begun
    line = environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(line)[1:]
    return (words, "") if line[-1:].isspace() else (words[:-1], words[-1] if words else "")


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quote that is still open
        return line.split()


def _kind(words: Sequence[str], begun: str) -> str | None:
    """Return what is to be completed; None where it is a flag, or nobody here knows."""
    verb = next((word for word in words if not word.startswith("-")), None)
    if begun.startswith("-") or "--" in words or words[-1:] == ["--config-file"]:
        return None
    if verb is None:
        return "verbs"
    last = words[-1]
    behind = [word for word in words[words.index(verb) + 1 :] if not word.startswith("-")]
    for row in read_table(__file__, "completion.tsv"):
        if row["verbs"] != "*" and verb not in row["verbs"].split(","):
            continue
        if row["flags"]:
            if last in row["flags"].split():
                return row["kind"]
        elif not last.startswith("-") and (not behind or row["kind"].endswith("+")):
            return row["kind"].rstrip("+")
    return None


def _clusters() -> Values:
    return ((name, "") for name in _settings()["clusters"])


def _frameworks() -> Values:
    from clusterkit.launch.frameworks import framework_names

    return ((name, "") for name in framework_names())


def _models() -> Values:
    from clusterkit.estimate.models.named import preset_names

    return ((name, "") for name in preset_names())


def _gpus() -> Values:
    from clusterkit.estimate import machines

    rows = read_table(machines.__file__, "gpus.tsv")
    return ((row["name"], "") for row in rows)


def _checks() -> Values:
    from clusterkit.preflight import checks

    text = Path(checks.__file__).with_name("checks.ini").read_text(encoding="utf-8")
    return ((name, "") for name in re.findall(r"(?m)^\[([A-Z]+[0-9]+)\]$", text))


def _topics() -> Values:
    def load() -> list[str]:
        from clusterkit.cli.explain.topics import all_topics

        return list(all_topics())

    # Installing a package that brings checks changes the folder of packages.
    found = _kept("topics", [__version__, *map(_stamp, sys.path)], load)
    return ((str(name), "") for name in found)


def _verbs() -> Values:
    def load() -> dict[str, str]:
        from clusterkit.cli.frame.main import VERBS, command_of

        helps = {verb: command_of(verb).get_short_help_str(60) for verb in VERBS}
        return {verb: _NOT_PLAIN.split(text, maxsplit=1)[0] for verb, text in helps.items()}

    key = [__version__, _stamp(Path(__file__).with_name("verbs.tsv"))]
    found: dict[str, str] = _kept("verbs", key, load)
    return found.items()


def _jobs() -> Iterator[tuple[str, str]]:
    """Yield `latest`, and the newest jobs and arrays of this user, newest first."""
    from clusterkit.executors.run.runfolder import read_submission
    from clusterkit.jobs.find import LATEST, list_runs

    yield LATEST, "the newest job or array"
    told = set()
    runs = list_runs(Path(root) for root in _settings()["roots"])
    for run in runs[: -_MOST_JOBS - 1 : -1]:
        submission = read_submission(run)
        if submission is None:
            continue
        shown = f"{submission.name} on {submission.cluster}"
        # jobs of an array are called NAME-INDEX, where the user gave one NAME
        base = submission.array and submission.name.removesuffix(f"-{submission.index}")
        job = submission.job_id or run.key
        for word in (submission.array, base, job, submission.name):
            if word and word not in told:
                told.add(word)
                yield word, shown


_VALUES: Mapping[str, Callable[[], Values]] = {
    "checks": _checks,
    "clusters": _clusters,
    "frameworks": _frameworks,
    "gpus": _gpus,
    "jobs": _jobs,
    "models": _models,
    "topics": _topics,
    "verbs": _verbs,
}


def _settings() -> Any:
    """Return the names of clusters and the folders of their runs, as the files are now."""
    from clusterkit.config.sources import named_file, nearest_file, user_file

    cwd = Path.cwd()
    read = (named_file(cwd, os.environ), nearest_file(cwd), user_file(os.environ))
    ours = sorted(item for item in os.environ.items() if item[0].startswith("CLUSTERKIT_"))

    def load() -> dict[str, list[str]]:
        from clusterkit.config.load import load_settings
        from clusterkit.jobs.find import run_roots

        clusters = load_settings().clusters
        return {"clusters": list(clusters), "roots": list(map(str, run_roots(clusters.values())))}

    return _kept("settings", [__version__, str(cwd), *map(_stamp, read), *map(list, ours)], load)


def _stamp(path: Path | str | None) -> list[object]:
    """Return by what it shows that a file or folder has been changed."""
    try:
        about = Path(path or os.devnull).stat()
    except (OSError, ValueError):
        return [str(path)]
    return [str(path), about.st_mtime_ns, about.st_size]


def _kept(name: str, key: list[Any], load: Callable[[], Any]) -> Any:
    """Return what `load` returns, from the user's cache where `key` is still the same."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(base) / "clusterkit" / f"completion-{name}.json"
    try:
        kept = json.loads(path.read_bytes())
        if kept["key"] == key:
            return kept["value"]
    except (OSError, ValueError, LookupError, TypeError):
        pass
    value = load()
    from clusterkit.core import files

    with suppress(ClusterkitError):  # with nowhere to keep it, it takes longer each time
        files.create_folder(path.parent)
        files.write_json(path, {"key": key, "value": value}, mode=files.PRIVATE)
    return value
