"""Our own snippets: those that run a Python program on a node, and how all of them answer.

Programs are those of programs/preflight, fed to the node's interpreter. Answers are `key=value`
lines; the last line is `end`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from clusterkit.core.data import read_template
from clusterkit.core.shell import quote, quote_path
from clusterkit.core.untrusted import whole
from clusterkit.transport.probe import PreflightJob, Unparsed

HEADER = "ck-"
"""How the output of a program begins; without it, it never ran."""

_TEST = "import sys; sys.exit(sys.version_info < (3, 6))"


def read_program(name: str) -> str:
    """Return the text of one of the programs."""
    return read_template(f"programs/preflight/{name}.py")


def bundled(program: str, modules: Mapping[str, str]) -> str:
    """Return the text of `program` behind the modules that it imports, by name."""
    known = "".join(
        f"sys.modules[{name!r}] = types.ModuleType({name!r})\n"
        f"exec({source!r}, sys.modules[{name!r}].__dict__)\n"
        for name, source in modules.items()
    )
    return f"import sys, types\n{known}{program}"


def port_of(job: PreflightJob) -> int:
    """Return the port of the job; where that is not known, the first of those that jobs get."""
    from clusterkit.core.model import ClusterKind, ClusterSpec  # noqa: PLC0415 - loads slowly

    return job.port or ClusterSpec(name="any", kind=ClusterKind.SSH).port_range[0]


def snippet(
    job: PreflightJob, modules: Sequence[str], program: str, arguments: Sequence[str], *, env: bool
) -> str:
    """Return the snippet that runs `program` with `arguments`; `modules` are what it may import.

    Nothing is written on the node: sources travel as arguments. With `env`, the job's variables
    are set.
    """
    sources = [part for name in modules for part in (name, read_program(name))]
    argv = " ".join(
        quote(w) for w in (read_program("boot"), *sources, "--", read_program(program), *arguments)
    )
    exports = [f"export {name}={quote(value)}" for name, value in job.env.items() if env]
    pythons = " ".join(quote_path(p) for p in dict.fromkeys((job.python, "python3", "python")))
    return "\n".join(
        [
            *exports,
            f"for p in {pythons}; do",
            f'"$p" -c {quote(_TEST)} 2>/dev/null && exec "$p" -c {argv}',
            "done",
            'echo "no Python of 3.6 or newer"; exit 127',
        ]
    )


def read_lines(text: str) -> list[str]:
    """Return the lines before the final `end`.

    Raises:
        Unparsed: there is no such line, so something is cut off.
    """
    lines = text.splitlines()
    if not lines or lines[-1] != "end":
        raise Unparsed("the end is missing")
    return lines[:-1]


def matched(text: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Yield what a pattern finds in each line that is not empty.

    Raises:
        Unparsed: a line is something else.
    """
    for line in filter(None, text.split("\n")):
        found = pattern.fullmatch(line)
        if found is None:
            raise Unparsed(f"line {line[:40]!r}")
        yield found


def read_pairs(text: str) -> dict[str, str]:
    """Return the values by key.

    Raises:
        Unparsed: a line is no pair, a key stands there twice, or the final `end` is missing.
    """
    pairs: dict[str, str] = {}
    for line in read_lines(text):
        key, equals, value = line.partition("=")
        if not equals or key in pairs:
            raise Unparsed(f"unexpected line {line[:60]!r}")
        pairs[key] = value.strip()
    return pairs


def text_of(pairs: Mapping[str, str], key: str) -> str:
    """Return the value of `key`, which has to be there and not to be empty."""
    if not (value := pairs.get(key, "")):
        raise Unparsed(f"{key} is missing")
    return value


def number_of(pairs: Mapping[str, str], key: str) -> int:
    """Return the value of `key`, which has to be a whole number."""
    return whole(text_of(pairs, key))
