"""Flags that verbs of several kinds have."""

from __future__ import annotations

from typing import Annotated, Any

import typer

CLUSTER_VARIABLE = "CLUSTERKIT_CLUSTER"

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def cluster_option(
    help_text: str, *, panel: str | None = None, variable: str | None = CLUSTER_VARIABLE
) -> Any:
    """Return `--cluster`.

    `variable` is None for verbs that only tell of clusters and jobs: there, the cluster that a user
    usually goes to is not meant unless it is named.
    """
    return typer.Option(
        "--cluster",
        "-c",
        help=help_text,
        rich_help_panel=panel,
        envvar=variable,
        metavar="NAME",
        show_default=False,
    )


def hosts_option(help_text: str, *, panel: str | None = None) -> Any:
    """Return `--hosts`."""
    return typer.Option(
        "--hosts", help=help_text, rich_help_panel=panel, metavar="LIST", show_default=False
    )


OnlyHostsFlag = Annotated[
    str | None, hosts_option("Only these, such as n[1-4]; else all hosts of the cluster.")
]
