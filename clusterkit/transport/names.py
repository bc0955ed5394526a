"""Names of nodes that may go to a resolver, to ssh or to srun: nothing that a shell could read."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from clusterkit.core.errors import Problem, UserError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_HINT = "a name has letters, digits, dots, dashes and underscores, and no dash or dot in front"


def check_names(nodes: Iterable[str]) -> None:
    """Accept host names, IPv4 and IPv6 addresses; refuse everything else.

    Raises:
        UserError: with one problem for each name that is refused.
    """
    refused = [name for name in dict.fromkeys(nodes) if not _is_name(name)]
    if refused:
        raise UserError(
            problems=[Problem(message=f"no host name: {name!r}", hint=_HINT) for name in refused]
        )


def _is_name(text: str) -> bool:
    if _NAME.fullmatch(text):
        return True
    if "%" in text:  # a zone may hold any character
        return False
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
