"""The command line: one file per verb, imported only when that verb runs.

A verb module holds either a function named like the verb (`lint-env` -> `lint_env`), annotated
for typer, or, where the verb has verbs of its own, a `typer.Typer` named `app`. The first line of
its docstring is its help. It prints through `cli.console` and raises `UserError`/`RemoteError`;
`main` turns those into messages and exit codes.
"""

import gc
import os

from clusterkit.cli.frame.completion import VARIABLE, complete

__all__ = ["main"]

_COLLECT_EVERY = 50_000
"""How many objects are made between two searches for cycles. Loading a verb makes about as many,
and all of them stay: Python's 700 would search them a hundred times, a tenth of a short verb."""


def main() -> None:
    """Run the verb that is typed, or complete what a shell has of it."""
    gc.set_threshold(_COLLECT_EVERY)
    if VARIABLE in os.environ and complete(os.environ):
        return
    from clusterkit.cli.frame.main import main as run

    run()
