"""The distribution that clusterkit is installed by: its name, its metadata, and who bears ours.

The package index has a project called `clusterkit`, and it is somebody else's. So the distribution
has another name than what it is imported by, and nothing here asks an index for either of the two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from importlib.metadata import Distribution

DISTRIBUTION = "clusterkit-launch"
FOREIGN = "clusterkit"
"""The name that belongs to another project, which installs files over ours."""

_HOME = Path(__file__).resolve().parents[2]
"""Where the package lies: a folder of installed packages, or a checkout."""


def normal_name(name: str) -> str:
    """Return the name of a distribution in the one spelling that compares (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_ours(name: str) -> bool:
    """Tell whether no index may be asked for this name: ours, and the one that looks like it."""
    return normal_name(name) in {DISTRIBUTION, FOREIGN}


def wheel_name(version: str) -> str:
    """Return the file name of our wheel (PEP 427)."""
    return f"{DISTRIBUTION.replace('-', '_')}-{version}-py3-none-any.whl"


def own_distribution() -> Distribution | None:
    """Return what this very package was installed by; None where it runs without installation.

    It lies beside the package, or says that its files are those of this checkout.
    """
    for found in _distributions(name=DISTRIBUTION, path=[str(_HOME)]):
        return found
    for name in (DISTRIBUTION, FOREIGN):  # a checkout that was installed under its former name
        for found in _distributions(name=name):
            if _is_this_checkout(found):
                return found
    return None


def own_requirements(extra: str | None = None) -> tuple[str, ...]:
    """Return what this package requires, or what one of its extras adds to that."""
    found = own_distribution()
    required = (found.requires if found else None) or ()
    if extra is None:
        return tuple(line for line in required if "extra ==" not in line)
    of_extra = re.compile(rf"extra == ['\"]{re.escape(extra)}['\"]")
    return tuple(line.partition(";")[0].strip() for line in required if of_extra.search(line))


def foreign_distribution() -> Distribution | None:
    """Return the other project of our import name where this Python has it; None otherwise."""
    found = _distributions(name=FOREIGN)
    return next((one for one in found if not _is_this_checkout(one)), None)


def _distributions(**wanted: Any) -> Iterable[Distribution]:
    from importlib.metadata import distributions  # noqa: PLC0415 - loads the parser of e-mails

    return distributions(**wanted)


def _is_this_checkout(found: Distribution) -> bool:
    """Tell whether pip installed it from the folder of this package (PEP 610)."""
    try:
        source = json.loads(found.read_text("direct_url.json") or "{}")
        url = urlsplit(source["url"])
    except (ValueError, KeyError, TypeError):
        return False
    return url.scheme == "file" and Path(unquote(url.path)).resolve() == _HOME
