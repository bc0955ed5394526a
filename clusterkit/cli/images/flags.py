"""Flags that several of the verbs `images ...` have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clusterkit.cli.frame.flags import option

VariantFlag = Annotated[
    str | None,
    option(
        "--variant",
        "cpu, cuda or rocm, of names without :VARIANT. Without it, cuda.",
        "VARIANT",
        envvar="CLUSTERKIT_IMAGES_VARIANT",
    ),
]
Registry = Annotated[
    str,
    option(
        "--registry",
        "HOST\\[:PORT]\\[/PATH] that goes before the images' names.",
        "REGISTRY",
        envvar="CLUSTERKIT_IMAGES_REGISTRY",
    ),
]
PipConf = Annotated[
    Path | None,
    option(
        "--pip-conf",
        "A pip.conf with your package index. It is in no image.",
        "FILE",
        envvar="CLUSTERKIT_IMAGES_PIP_CONF",
    ),
]
Network = Annotated[
    str | None,
    option(
        "--network",
        "Network of the containers, such as host.",
        "NAME",
        envvar="CLUSTERKIT_IMAGES_NETWORK",
    ),
]
Name = Annotated[
    str, typer.Argument(help="An image of `clusterkit images list`.", show_default=False)
]


def size_words(size_bytes: int) -> str:
    """Return a size as people read it: `812 MB`, `1.4 GB`."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"
