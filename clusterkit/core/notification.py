"""Ways to tell somebody that a job has ended, as a configuration writes them: `mail ADDRESS`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from clusterkit.core.errors import did_you_mean
from clusterkit.core.model import OnHang

FORMS = "mail ADDRESS, slack NAME, webhook NAME, or run COMMAND"
FORMS_OF_HANG = f"{', '.join(OnHang)}; beside it or alone, {FORMS}"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|(?:/|~/)[!-~]+", re.ASCII)
"""A variable, or a file, that holds an address which is a secret."""
_URL = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+(?:[/?][!-~]*)?", re.ASCII)
"""With no password before the host: that would be a secret."""
_HOST = re.compile(r"https?://[^/?]*")
_MAIL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*(?:@[A-Za-z0-9.-]+)?", re.ASCII)
_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.""", re.DOTALL)
_OF_SHELL = re.compile(r"\|\|?|&&|(?<!\S)&|&(?!\S)|;|[0-9]?[<>]+(?:&[0-9])?")
"""What no word holds that is for a shell without quotes; of `&`, an address does (`?a=1&b=2`)."""
_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class Way:
    """One way to tell it."""

    kind: str
    """`mail`, `slack`, `webhook` or `run`."""
    to: tuple[str, ...]
    """The words of a command; else one, whom or where to tell, or by which name that is found."""

    def __str__(self) -> str:
        """Return what may stand in a log: of an address, no more than the host."""
        host = _HOST.match(self.to[0])
        return f"{self.kind} {host[0] if host else self.to[0]}"


def is_url(text: str) -> bool:
    """Tell whether `text` is an address to which a webhook can be posted."""
    return len(text) <= _LONGEST and _URL.fullmatch(text) is not None


def parse_way(text: str) -> Way:
    """Return the way that a text means.

    Raises:
        ValueError: it means none; says what is wrong with it, and repeats no address.
    """
    kind, _, rest = text.strip().partition(" ")
    to = rest.strip()
    if kind == "run":
        try:
            words = tuple(shlex.split(to))
        except ValueError as error:
            raise ValueError("the command after `run` has an open quote") from error
        if not words:
            raise ValueError("no command stands after `run`")
        if (found := _OF_SHELL.search(_QUOTED.sub("''", to))) is not None:
            raise ValueError(f"`run` has no shell, which `{found[0]}` needs: run sh -c '...'")
        return Way(kind, words)
    if kind == "mail":
        known = _MAIL.fullmatch(to) is not None
    elif kind == "webhook":
        known = _NAME.fullmatch(to) is not None or is_url(to)
    elif kind == "slack":
        known = _NAME.fullmatch(to) is not None
    else:
        raise ValueError(f"a notification begins with mail, slack, webhook or run, not {kind!r}")
    if not known:
        raise ValueError(f"what stands after `{kind}` is no {_WANTED[kind]}")
    return Way(kind, (to,))


def parse_hang(given: str | Sequence[str]) -> tuple[OnHang | None, tuple[str, ...]]:
    """Return what is to be done about a hang, None where nothing says so, and whom to tell.

    Of several actions the last counts, as of flags that `rerun` adds to those of a job.

    Raises:
        ValueError: a text is neither an action nor a notification.
    """
    texts = (given,) if isinstance(given, str) else given
    actions = [OnHang(text) for text in texts if text in [*OnHang]]
    tell = tuple(text for text in texts if text not in actions)
    for text in tell:
        try:
            parse_way(text)
        except ValueError as error:
            close = did_you_mean(text, map(str, OnHang))
            raise ValueError(f"{error}; {close}" if close else str(error)) from error
    return (actions[-1] if actions else None), tell


_WANTED = {
    "mail": "address",
    "slack": "name of a variable or a file that holds the address",
    "webhook": "address (http, https), nor the name of a variable or a file that holds one",
}
