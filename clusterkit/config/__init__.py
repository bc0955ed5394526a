"""Configuration: the layers of settings, each value with the place it came from.

`load_settings` is the way in. Names are resolved on first use, so that the small modules of this
package (`units`) can be imported without paying for pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterkit.config.load import load_settings
    from clusterkit.config.settings import Layer, Origin, Settings

__all__ = ["Layer", "Origin", "Settings", "load_settings"]

_HOMES = {
    "Layer": "settings",
    "Origin": "settings",
    "Settings": "settings",
    "load_settings": "load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
