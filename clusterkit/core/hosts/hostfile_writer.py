"""Write hosts as a hostfile that its tool reads back as exactly those hosts, or refuse."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

from clusterkit.core.errors import Problem, UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.hosts.hostfile import (
    KEYS,
    MAX_SLOTS,
    Format,
    is_host_name,
    is_ipv6,
    is_user_name,
    short_name,
    to_format,
)
from clusterkit.core.model import Host

_SSH_CONFIG = "put it in ~/.ssh/config"

_PRRTE_KEYWORDS = frozenset(KEYS) | {
    *("boards", "cores", "cores-per-socket", "cores_per_socket", "rank", "slot", "sockets"),
    *("sockets-per-board", "sockets_per_board"),
}
"""Words that Open MPI's lexer never takes for a name (PRRTE, hostfile_lex.l)."""


def write(hosts: Sequence[Host], format: str, default_slots: int | None = None) -> str:  # noqa: A002
    """Return the hostfile text for `hosts`: one host per line, nothing that a tool may stumble on.

    Reading it back gives the same hosts. `default_slots` stands in for slots that are unknown;
    for the formats without slots it is what their reader will be told, so that hosts with
    exactly so many lose nothing.

    Raises:
        UserError: naming everything that the format cannot express.
    """
    target = to_format(format)
    problems = list(_problems(hosts, target, default_slots))
    if problems:
        raise UserError(problems=problems)
    if target is Format.HOSTLIST:
        return hostlist.fold(host.name for host in hosts) + "\n"
    if default_slots is not None:
        hosts = [
            dataclasses.replace(host, slots=default_slots) if host.slots is None else host
            for host in hosts
        ]
    return "".join(f"{_line(host, target)}\n" for host in hosts)


def _line(host: Host, target: Format) -> str:
    if target is Format.NAMES:
        return host.name
    if target is Format.HYDRA:
        return f"{host.name}:{host.slots}" + (f" user={host.user}" if host.user else "")
    fields = {"slots": host.slots, "max_slots": host.max_slots, "username": host.user}
    fields["port"] = host.port
    given = (f"{key}={value}" for key, value in fields.items() if value is not None)
    return " ".join((host.name, *given))


def _problems(hosts: Sequence[Host], target: Format, default: int | None) -> Iterator[Problem]:
    if not hosts:
        yield Problem(message="there are no hosts to write")
    if default is not None and not 1 <= default <= MAX_SLOTS:
        yield Problem(message=f"{default} slots per host: it takes 1 to {MAX_SLOTS}")
    yield from _host_problems(hosts, target)
    for message, affected, hint in _unsayable(hosts, target, default):
        if affected:
            names = hostlist.fold_set(host.name for host in affected)
            yield Problem(message=f"{message}: {names}", hint=hint)


def _host_problems(hosts: Sequence[Host], target: Format) -> Iterator[Problem]:
    seen: set[str] = set()
    for host in hosts:
        if not is_host_name(host.name):
            yield Problem(message=f"{host.name!r} is not a host name")
        elif host.name in seen:
            yield Problem(message=f"host {host.name!r} stands twice", hint="name it once")
        elif not _can_be_named(host.name, target):
            yield Problem(message=f"{target.tool} cannot name a host {host.name!r}")
        if host.slots is not None and not 1 <= host.slots <= MAX_SLOTS:
            yield Problem(message=f"{host.name} has {host.slots} slots: it takes 1 to {MAX_SLOTS}")
        seen.add(host.name)


def _can_be_named(name: str, target: Format) -> bool:
    if is_ipv6(name):
        return target.says("ipv6")
    if target is Format.OPENMPI:
        # Its lexer takes a bare number for an integer and so drops leading zeros.
        return name not in _PRRTE_KEYWORDS and not (name.isdigit() and name != str(int(name)))
    return True


def _unsayable(
    hosts: Sequence[Host], target: Format, default: int | None
) -> Iterator[tuple[str, list[Host], str | None]]:
    """Yield what `target` cannot express, the hosts concerned (often none), and a hint."""
    tool = target.tool
    if target in {Format.DEEPSPEED, Format.HOROVOD, Format.HYDRA} and default is None:
        unknown = [host for host in hosts if host.slots is None]
        yield f"{tool} needs slots, and they are unknown", unknown, "say --slots N"
    if not target.says("slots"):
        known = [host for host in hosts if host.slots not in {None, default}]
        uniform = len({host.slots for host in hosts}) == 1
        hint = f"say --slots {known[0].slots} to leave them to whoever reads it" if known else None
        yield f"{tool} cannot say slots", known, hint if uniform else None
    for what, hint in (("max_slots", "remove it"), ("port", _SSH_CONFIG), ("user", _SSH_CONFIG)):
        if not target.says(what):
            having = [host for host in hosts if getattr(host, what) is not None]
            yield f"{tool} cannot say {what}", having, hint
    if target is Format.OPENMPI:
        yield from _unsayable_to_openmpi(hosts, default)
    if target.says("user"):
        users = {host.user for host in hosts if host.user}
        bad = {user for user in users if not is_user_name(user)}
        if target is Format.OPENMPI:
            bad |= {user for user in users if "." in user} | (users & _PRRTE_KEYWORDS)
        yield f"{tool} cannot take this user name", [h for h in hosts if h.user in bad], _SSH_CONFIG


def _unsayable_to_openmpi(
    hosts: Sequence[Host], default: int | None
) -> Iterator[tuple[str, list[Host], str | None]]:
    shorts = Counter(map(short_name, {host.name for host in hosts}))
    alike = [host for host in hosts if shorts[short_name(host.name)] > 1]
    yield "Open MPI strips domains, and so takes for one machine", alike, "give addresses"
    limited = [host for host in hosts if host.max_slots is not None]
    low = [host for host in limited if (host.max_slots or 0) < (host.slots or default or 1)]
    yield "max_slots is less than slots", low, None
    alone = [host for host in limited if host.slots is None and default is None]
    yield "Open MPI takes max_slots for slots where those are unknown", alone, "say --slots N"
