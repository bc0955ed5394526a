"""Flags that several of the verbs `images ...` have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clusterkit.cli.frame.flags import option


def setting(name: str, text: str, metavar: str) -> Any:
    """Return an option that a variable of the environment sets as well."""
    variable = f"CLUSTERKIT_IMAGES_{name.upper().replace('-', '_')}"
    return option(f"--{name}", text, metavar, envvar=variable)


_VARIANT = "cpu, cuda or rocm, of names without :VARIANT. Without it, cuda."
_REGISTRY = "HOST\\[:PORT]\\[/PATH] that goes before the images' names."
_PIP_CONF = "A pip.conf with your package index. It is in no image."

VariantFlag = Annotated[str | None, setting("variant", _VARIANT, "VARIANT")]
Registry = Annotated[str, setting("registry", _REGISTRY, "REGISTRY")]
PipConf = Annotated[Path | None, setting("pip-conf", _PIP_CONF, "FILE")]
Network = Annotated[
    str | None, setting("network", "Network of the containers, such as host.", "NAME")
]
Name = Annotated[
    str, typer.Argument(help="An image of `clusterkit images list`.", show_default=False)
]


def size_words(size_bytes: int) -> str:
    """Return a size as people read it: `812 MB`, `1.4 GB`."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"
