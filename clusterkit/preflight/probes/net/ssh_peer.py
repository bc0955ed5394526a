"""Whether a node can log in to the next one by SSH, as mpirun and its like do."""

from __future__ import annotations

from dataclasses import dataclass

from clusterkit.core.data import read_snippet
from clusterkit.core.shell import quote
from clusterkit.preflight.probes.snippets import number_of, read_pairs, text_of
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed

_MAX_BYTES = 100_000
"""For the list of nodes; Linux takes 128 KiB as one argument (MAX_ARG_STRLEN)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLogin:
    """One attempt to log in to another node."""

    peer: str
    exit_code: int
    message: str
    """The last line of what ssh printed."""


def _command(job: PreflightJob) -> str | None:
    if not wanted(job) or len(job.hosts) < 2:
        return None
    hosts = " ".join(map(quote, job.hosts))
    return read_snippet("ssh_peer", hosts=hosts if len(hosts) < _MAX_BYTES else quote(job.hosts[0]))


def wanted(job: PreflightJob) -> bool:
    """Tell whether something will log in from node to node; every job of ours starts without."""
    return job.kind != "local" and job.peer_ssh


def parse(text: str) -> PeerLogin:
    """Read the pairs of the snippet."""
    pairs = read_pairs(text)
    code = number_of(pairs, "code")
    if code > 255:
        raise Unparsed(f"exit code {code}")
    return PeerLogin(peer=text_of(pairs, "peer"), exit_code=code, message=pairs.get("said", ""))


PROBE = Probe(name="ssh-peer", command=_command, parse=parse, timeout_s=12.0)
