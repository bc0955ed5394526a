"""What `submit` was asked for beside the job itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from clusterkit.cli.frame import console
from clusterkit.core.model import LaunchPlan

PreflightFlag = Annotated[
    str | None,
    typer.Option(
        "--preflight",
        help="What to check first: auto (the cluster's default), full or off. "
        "`clusterkit explain preflight` says more.",
        metavar="auto|full|off",
        show_default=False,
    ),
]
ExcludeUnfitFlag = Annotated[
    bool,
    typer.Option(
        "--exclude-unfit", help="Go on without nodes that are not fit, if enough are left."
    ),
]
ForceFlag = Annotated[bool, typer.Option("--force", help="Submit whatever preflight finds.")]
DryRunFlag = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be submitted; submit nothing.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The flags of `submit` that are not about the job itself."""

    dry_run: bool
    wait: bool
    follow: bool
    preflight: str | None
    exclude_unfit: bool
    force: bool
    json: bool
    after: tuple[str, ...] = ()


def remark_on_script(plan: LaunchPlan) -> None:
    """Warn where the job's script is for another framework, or gets what is meant for us."""
    from clusterkit.launch.scripts import cautions, strayed_flags

    for problem in (*cautions(plan), *strayed_flags(plan)):
        console.warn(str(problem))
