"""The snippets that feed the Python programs of programs/preflight to a node's interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterkit.core.data import read_template
from clusterkit.core.model import ClusterKind, ClusterSpec
from clusterkit.core.shell import quote, quote_path
from clusterkit.transport.probe import PreflightJob

DEFAULT_PORT = ClusterSpec(name="any", kind=ClusterKind.SSH).port_range[0]
"""Where the job's own port is not known: the first of those that jobs are given."""

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


def snippet(
    job: PreflightJob, modules: Sequence[str], program: str, words: Sequence[str], *, env: bool
) -> str:
    """Return the snippet that runs `program` with `words`; `modules` are what it may import.

    Nothing is written on the node: sources travel as arguments. With `env`, the job's variables
    are set.
    """
    sources = [part for name in modules for part in (name, read_program(name))]
    argv = " ".join(
        quote(w) for w in (read_program("boot"), *sources, "--", read_program(program), *words)
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
