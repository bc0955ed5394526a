"""Which checks a preflight is about."""

from __future__ import annotations

from collections.abc import Sequence

from clusterkit.core.errors import UserError
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.checks import all_checks, select_checks
from clusterkit.preflight.checks.base import Check, Tier
from clusterkit.preflight.checks.ssh import peers


def checks_to_ask(
    select: Sequence[str], ignore: Sequence[str], *, network: bool
) -> tuple[Check, ...]:
    """Return the checks for which nodes are to be asked.

    Whoever names a check of the network wants it measured.

    Raises:
        UserError: a word names no check, or none is left.
    """
    chosen = select_checks(all_checks(), select=select, ignore=ignore)
    if not network and not select:
        chosen = tuple(check for check in chosen if check.tier is not Tier.NETWORK)
    return _some(chosen)


def checks_to_judge(
    select: Sequence[str], ignore: Sequence[str], bundle: Bundle
) -> tuple[Check, ...]:
    """Return the checks that judge what was kept: those for which it was, unless some are named.

    Raises:
        UserError: a word names no check, or none is left.
    """
    chosen = select_checks(all_checks(), select=select, ignore=ignore)
    if not select and bundle.checks:
        chosen = tuple(check for check in chosen if check.id in bundle.checks)
    return _some(chosen)


def asks_for_peers(select: Sequence[str]) -> bool:
    """Tell whether nodes are to log in to each other: no job of ours needs it, so by name alone."""
    return bool({peers.id, peers.name} & {word.strip() for word in select})


def _some(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    if not checks:
        raise UserError(
            "no check is left, so nothing would be proven of any node",
            hint="leave out less with --ignore, or choose with --select",
        )
    return checks
