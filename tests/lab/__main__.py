"""Command line of the practice cluster: ``python -m tests.lab up``."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import folder
from tests.lab.hosts import enter_argv, find_holders
from tests.lab.lab import Lab
from tests.lab.layout import HEAD, LabError, require_tools

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return 0, the exit code of ``exec``'s command, or 2 for "could not"."""
    options = _parser().parse_args(argv)
    lab = Lab()
    try:
        require_tools()
        return int(globals()[f"_{options.verb}"](lab, options))
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start the cluster, or what is missing of it")
    up.add_argument("--nodes", type=int, help="compute hosts (default: 3)")
    up.add_argument(
        "--accounting",
        action=argparse.BooleanOptionalAction,
        help="with slurmdbd and a database, so that sacct answers (default: without)",
    )
    up.add_argument(
        "--cloud", type=int, help="the last so many nodes are powered down (default: 0)"
    )
    down = verbs.add_parser("down", help="end all its processes, remove its folder")
    down.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    verbs.add_parser("status", help="show hosts and nodes; exit 1 when it is not up")
    verbs.add_parser("env", help="print shell lines that set SLURM_CONF and CLUSTERKIT_LAB")
    run = verbs.add_parser("exec", help="run a command on a host: exec HOST -- CMD ARG...")
    run.add_argument("host")
    run.add_argument("command", nargs=argparse.REMAINDER)
    return parser


def _up(lab: Lab, options: argparse.Namespace) -> int:
    """Start the cluster."""
    start = time.monotonic()
    with folder.locked(lab.root, name=folder.USERS_LOCK):
        lab.up(options.nodes, accounting=options.accounting, cloud=options.cloud)
        # Who types "up" wants to keep it: tests that had started it must not stop it now.
        (lab.root / folder.USERS).unlink(missing_ok=True)
    print(f"up in {time.monotonic() - start:.1f} s: {' '.join(lab.hosts)}  ({lab.root})")
    return 0


def _down(lab: Lab, options: argparse.Namespace) -> int:
    """Stop the cluster."""
    lab.down(keep=options.keep)
    return 0


def _status(lab: Lab, options: argparse.Namespace) -> int:
    """Show what runs."""
    del options
    living = find_holders(lab.root)
    if not living:
        print(f"down ({lab.root})")
        return 1
    for host in lab.hosts:
        state = f"up, process {living[host]}" if host in living else "DEAD"
        print(f"{host:6} {lab.layout.address(host):14} {state}")
    if HEAD in living:
        print(lab.run(HEAD, ["sinfo"]).stdout, end="")
    return 0 if lab.is_up() else 1


def _env(lab: Lab, options: argparse.Namespace) -> int:
    """Print the variables of a host's login that matter, for ``eval``."""
    del options
    for name in ("SLURM_CONF", "CLUSTERKIT_LAB"):
        print(f"export {name}={shlex.quote(lab.env()[name])}")
    return 0


def _exec(lab: Lab, options: argparse.Namespace) -> int:
    """Run a command on a host, with our terminal and streams."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        command = [lab.env()["SHELL"]]
    holder = find_holders(lab.root).get(options.host)
    if holder is None:
        raise LabError(f"host {options.host} of {lab.root} is not up")
    argv = enter_argv(holder, command, env=lab.env(), cwd=Path.cwd())
    return subprocess.run(argv, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
