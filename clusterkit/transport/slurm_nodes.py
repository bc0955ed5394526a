"""What Slurm says of its nodes: `scontrol show node`, asked once by the client.

One question to the controller for all nodes, and not one from each of them: a controller that is
asked by thousands at once stops answering. `answers` hands each node its own record, as if the
probe `slurm-node` had printed it there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clusterkit.core.hosts import hostlist
from clusterkit.transport.probe import Output, PreflightJob, Probe, Unparsed

_START = re.compile(r"^NodeName=(\S+)", re.MULTILINE)
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z_]*)=")
_ONE_LINE_REASON = re.compile(r"(?<=\s)Reason=(.*?\[[^\[\]@]*@[^\[\]]*\])(?=\s|$)")
_OWN_LINE_REASON = re.compile(r"^\s+Reason=(.*)$", re.MULTILINE)
_SIGNED = re.compile(r"(.*)\[([^\[\]@]*)@([^\[\]]*)\]")
_GRES = re.compile(r"([a-z_]\w*)((?::[A-Za-z_][\w.-]*)*)(?::(\d{1,9})[KMG]?)?", re.IGNORECASE)
_SYMBOLS = {
    "*": "NOT_RESPONDING", "~": "POWERED_DOWN", "%": "POWERING_DOWN", "#": "POWERING_UP",
    "!": "POWER_DOWN", "^": "REBOOT_ISSUED", "@": "REBOOT_REQUESTED", "$": "MAINTENANCE",
    "-": "PLANNED",
}  # fmt: skip
"""node_state_string of src/common/slurm_protocol_defs.c; "+" (completing) says nothing here."""

SOON = {
    "POWER_DOWN": "about to be powered down", "REBOOT_REQUESTED": "about to reboot",
}  # fmt: skip
"""States of a node that is up for as long as a job has it, and not for another job."""
ASLEEP = {
    "POWERED_DOWN": "powered down", "POWERING_DOWN": "powering down",
    "POWERING_UP": "powering up", "POWER_UP": "powering up", "POWER": "powered down",
    "REBOOT_ISSUED": "rebooting", "REBOOT": "about to reboot", **SOON,
    "HIDDEN": "hidden by PrivateData=nodes, perhaps powered down",
}  # fmt: skip
"""States of a node that a request for it wakes, or that is not up yet; nothing against it.

`POWER` is that of Slurm before 21.08; `REBOOT` is what sinfo says of one about to, or silent;
`HIDDEN` is our word for one of which Slurm shows nothing.
"""

BROKEN = {
    "DOWN": "down", "ERROR": "in error", "INVAL": "registered with less than configured",
    "INVALID_REG": "registered with less than configured",
    "NOT_RESPONDING": "not responding", "NO_RESPOND": "not responding",
}  # fmt: skip
"""States (sinfo(1), NODE STATE CODES) in which jobs end with their node, and none starts there."""
FAILING = {"FAIL": "failing", "FAILING": "failing"}
DEAD = {**BROKEN, "FUTURE": "not there yet", "UNKNOWN": "unknown"}
CLOSED = {**DEAD, **FAILING, "DRAIN": "drained", "DRAINED": "drained", "DRAINING": "drained"}
"""Those in which no new job starts; when failing or drained, running ones go on."""
RESERVED = {"MAINTENANCE": "in maintenance", "MAINT": "in maintenance", "RESERVED": "reserved"}
"""Those in which a node is kept for some jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """A node as the controller knows it."""

    name: str
    states: tuple[str, ...]
    """The base state first, then its flags (`IDLE`, `DRAIN`)."""
    reason: str = ""
    reason_by: str = ""
    reason_at: str = ""
    gres: Mapping[str, int] | None = None
    """Configured count by name (`gpu`); None where the record does not say."""
    features: tuple[str, ...] = ()


def asleep(states: Iterable[str], *, among: Mapping[str, str] = ASLEEP) -> str:
    """Return why a node of these states is not to be asked; empty where nothing speaks against."""
    return next((among[state] for state in states if state in among), "")


def faults(states: Sequence[str]) -> tuple[str, ...]:
    """Return the states that may speak against a node: one that is not up cannot respond."""
    silent = {"NOT_RESPONDING", "NO_RESPOND"} if asleep(states) else set()
    return tuple(state for state in states if state not in silent)


def query(hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the command that prints the records of `hosts`; for the client, inside LC_ALL=C."""
    return ("scontrol", "--oneliner", "show", "node", hostlist.fold(dict.fromkeys(hosts)))


def answers(hosts: Sequence[str], output: Output) -> Mapping[str, Output]:
    """Return what `slurm-node` printed on each of `hosts`, from the one output of `query`.

    scontrol prints the records of the nodes that it knows and exits 1 where it lacks one.
    """
    records = split_records(output.stdout)
    if not records:
        return dict.fromkeys(hosts, output)
    unknown = Output(stdout="", stderr="Slurm knows no node of this name", exit_code=1)
    return {host: Output(stdout=records[host]) if host in records else unknown for host in hosts}


def split_records(text: str) -> Mapping[str, str]:
    """Return the record of each node, of one line or of many; other lines are left out."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if start := _START.match(line):
            current = found.setdefault(start[1], [])
            current.append(line)
        elif line.startswith((" ", "\t")) and current:
            current.append(line)
        else:
            current = []
    return {name: "\n".join(lines) + "\n" for name, lines in found.items()}


def parse(text: str) -> SlurmNode:
    """Read one record of `scontrol show node`, Slurm 20.11 to 25.11.

    A value may hold blanks (OS) and "=" (CfgTRES); a reason holds anything and so is taken out
    before the rest is looked at.
    """
    if len(_START.findall(text)) != 1 or not text.startswith("NodeName="):
        raise Unparsed("not the record of one node")
    pattern = _OWN_LINE_REASON if "\n" in text.strip() else _ONE_LINE_REASON
    found = pattern.search(text)
    rest = text[: found.start()] + text[found.end() :] if found else text
    parts = _FIELD.split(rest)
    fields: dict[str, str] = {}
    for key, value in zip(parts[1::2], parts[2::2], strict=True):
        fields.setdefault(key, value.strip())
    if not fields.get("NodeName") or not fields.get("State"):
        raise Unparsed("no NodeName or no State")
    written = (found[1] if found else fields.get("Reason", "")).strip()
    signed = _SIGNED.fullmatch(written)
    return SlurmNode(
        name=fields["NodeName"],
        states=states_of(fields["State"]),
        reason=signed[1].rstrip() if signed else written,
        reason_by=signed[2] if signed else "",
        reason_at=signed[3] if signed else "",
        gres=_gres(fields["Gres"]) if "Gres" in fields else None,
        features=_listed(fields.get("ActiveFeatures", fields.get("Features", ""))),
    )


def states_of(text: str) -> tuple[str, ...]:
    """Return the states in the words of scontrol or sinfo: the base first, symbols as flags.

    Raises:
        Unparsed: it is no state.
    """
    found: dict[str, None] = {}
    for word in text.upper().removesuffix("+").split("+"):
        name = word.rstrip("*~%#!$@^-")
        if not re.fullmatch(r"[A-Z_]{2,30}", name):
            raise Unparsed(f"state {text[:40]!r}")
        found[name] = None
        for symbol in word[len(name) :]:
            if symbol in _SYMBOLS:
                found[_SYMBOLS[symbol]] = None
    return tuple(found)


def _gres(text: str) -> Mapping[str, int]:
    """Read `gpu:a100:8(S:0-1),nic:2`; the part in parentheses names sockets."""
    counts: dict[str, int] = {}
    for item in _listed(re.sub(r"\([^()]*\)", "", text) if text != "(null)" else text):
        match = _GRES.fullmatch(item)
        if match is None:
            raise Unparsed(f"Gres {text[:60]!r}")
        counts[match[1]] = counts.get(match[1], 0) + int(match[3] or 1)
    return counts


def _listed(text: str) -> tuple[str, ...]:
    return () if text in {"", "(null)", "N/A"} else tuple(filter(None, text.split(",")))


def _not_there(job: PreflightJob) -> None:
    """Ask nothing on the nodes: the client asks the controller."""


PROBE = Probe(name="slurm-node", command=_not_there, parse=parse)
