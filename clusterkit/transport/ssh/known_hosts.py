"""Host keys: whom known_hosts vouches for, and what is done about everyone else.

The format is that of sshd(8), SSH_KNOWN_HOSTS: names may be hashed, be patterns, or carry a port;
`@revoked` keys are refused. Certificate authorities are left out, for paramiko knows no host
certificates. Files are read once and names looked up by hash table: paramiko's own class compares
each host with each line.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import paramiko

from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.ownership import read_own
from clusterkit.transport.probe import ReachProblem
from clusterkit.transport.ssh.config import Target

REVOKED = "@revoked"
_CA = "@cert-authority"


class HostKeyRefused(Exception):  # noqa: N818 - said to the user as it is, not a mistake of ours
    """A host is not who known_hosts says it is, or nobody knows who it is."""

    def __init__(self, problem: ReachProblem, detail: str) -> None:
        """Hold which of both, and the words for it."""
        self.problem = problem
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: str
    key: str
    """Base64."""
    place: str
    marker: str = ""


@dataclass(slots=True)
class _File:
    exact: dict[str, list[_Entry]] = field(default_factory=dict)
    hashed: list[tuple[bytes, bytes, _Entry]] = field(default_factory=list)
    patterns: list[tuple[tuple[str, ...], _Entry]] = field(default_factory=list)
    refused: str = ""
    """Why it does not count, such as that others can write it."""

    def add(self, names: str, entry: _Entry) -> None:
        if names.startswith("|1|"):
            salt, _, digest = names[3:].partition("|")
            self.hashed.append((base64.b64decode(salt), base64.b64decode(digest), entry))
        elif set(names) & set("*?!"):
            self.patterns.append((tuple(names.lower().split(",")), entry))
        else:
            for name in names.lower().split(","):
                self.exact.setdefault(name, []).append(entry)

    def find(self, name: str) -> Iterator[_Entry]:
        yield from self.exact.get(name, ())
        encoded = name.encode()
        for salt, digest, entry in self.hashed:
            if hmac.digest(salt, encoded, "sha1") == digest:
                yield entry
        for patterns, entry in self.patterns:
            if _matches(name, patterns):
                yield entry


class KnownHosts:
    """The known_hosts files of all hosts that are visited; safe in many threads."""

    def __init__(self, *, accept_new: bool) -> None:
        """Refuse keys that are not known, unless new ones are to be accepted."""
        self._accept_new = accept_new
        self._files: dict[Path, _File] = {}
        self._lock = threading.Lock()

    def key_kinds(self, target: Target) -> tuple[str, ...]:
        """Return the kinds of keys known of a host, so that it is asked for one of them."""
        with self._lock:
            known = [entry for entry in self._find(target) if not entry.marker]
        return tuple(dict.fromkeys(entry.kind for entry in known))

    def check(self, target: Target, kind: str, key: str) -> None:
        """Accept the key of a host, `key` in base64.

        Raises:
            HostKeyRefused: it is not known, or another one is, or it was revoked; or others can
                write one of the files.
        """
        with self._lock:
            for path in target.known_hosts:
                if refused := self._read(path).refused:
                    raise HostKeyRefused(ReachProblem.HOST_KEY_UNKNOWN, refused)
            found = self._find(target)
            same = [entry for entry in found if entry.key == key]
            if any(entry.marker == REVOKED for entry in same):
                raise HostKeyRefused(
                    ReachProblem.HOST_KEY_CHANGED, f"its key is revoked in {same[0].place}"
                )
            known = [entry for entry in found if not entry.marker]
            if any(entry in same for entry in known):
                return
            if known:
                raise HostKeyRefused(
                    ReachProblem.HOST_KEY_CHANGED,
                    f"its {kind} key {fingerprint(key)} is not the one in {known[0].place}",
                )
            if not self._accept_new:
                raise HostKeyRefused(
                    ReachProblem.HOST_KEY_UNKNOWN, self._unknown(target, kind, key)
                )
            self._learn(target, kind, key)

    def _unknown(self, target: Target, kind: str, key: str) -> str:
        text = f"its {kind} key {fingerprint(key)} is not in known_hosts as {target.at_port}"
        if any(entry.marker == _CA for entry in self._find(target)):
            text += " (an @cert-authority is, but host certificates are not supported)"
        return text

    def _find(self, target: Target) -> list[_Entry]:
        """Return what is known of a host; without its port too, as ssh does, if only there."""
        tables = [self._read(path) for path in target.known_hosts]
        for name in dict.fromkeys((target.at_port, target.key_name)):
            found = [entry for table in tables for entry in table.find(name)]
            if found:
                return found
        return []

    def _learn(self, target: Target, kind: str, key: str) -> None:
        if not target.user_known_hosts:
            raise HostKeyRefused(
                ReachProblem.HOST_KEY_UNKNOWN, "there is no known_hosts file to add its key to"
            )
        path, name = target.user_known_hosts[0], target.at_port
        if target.hash_names:
            name = paramiko.HostKeys.hash_host(name)
        if not path.parent.is_dir():
            files.create_folder(path.parent)
        files.append_line(path, f"{name} {kind} {key}", mode=files.PRIVATE)
        self._read(path).add(name, _Entry(kind, key, str(path)))

    def _read(self, path: Path) -> _File:
        table = self._files.get(path)
        if table is None:
            table = self._files[path] = read_known_hosts(path)
        return table


def read_known_hosts(path: Path) -> _File:
    """Read a known_hosts file; lines that make no sense are left out, as ssh does."""
    table = _File()
    if not path.is_file():  # /dev/null is how ssh is told to know nobody
        return table
    try:
        text = read_own(path, use="believe the host keys in it").decode(errors="replace")
    except UserError as error:
        table.refused = str(error)
        return table
    except OSError:
        return table
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        names, kind, key = fields[:3]
        try:
            table.add(names, _Entry(kind, key, f"{path}:{number}", marker))
        except (binascii.Error, ValueError):
            continue
    return table


def fingerprint(key: str) -> str:
    """Return the fingerprint of a base64 key as ssh shows it."""
    digest = base64.b64encode(hashlib.sha256(base64.b64decode(key)).digest())
    return "SHA256:" + digest.decode().rstrip("=")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether one of the patterns fits and none that begins with `!`."""
    if any(one.startswith("!") and _fits(name, one[1:]) for one in patterns):
        return False
    return any(_fits(name, one) for one in patterns if not one.startswith("!"))


def _fits(name: str, pattern: str) -> bool:
    # Only * and ? have a meaning: brackets stand around names with a port.
    return fnmatchcase(name, pattern.replace("[", "[[]"))
