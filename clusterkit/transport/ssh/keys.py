"""The keys to log in with: of ssh's configuration, of the agent, of ~/.ssh. Nobody is ever asked.

Each key file is read once for all hosts, and one connection to the agent serves all threads. A key
with a passphrase is left out unless the agent holds it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

_DEFAULT_FILES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


class LoginRefused(Exception):  # noqa: N818 - said to the user as it is, not a mistake of ours
    """No key was accepted; the text says what was tried."""


class _Agent(paramiko.Agent):  # type: ignore[misc]
    """The agent of this session: one question at a time, for paramiko has no lock there."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        super().__init__()

    def _send_message(self, msg: Any) -> Any:
        with self._turn:
            return super()._send_message(msg)


class Keys:
    """All keys, loaded when first needed; safe in many threads."""

    def __init__(self, identity_file: str | None) -> None:
        """Put `identity_file` before everything else, if there is one."""
        self._first = (identity_file,) if identity_file else ()
        self._lock = threading.Lock()
        self._loaded: dict[Path, Any] = {}
        self._notes: dict[Path, str] = {}
        self._agent_keys: tuple[Any, ...] | None = None

    def strategy(self, *, ssh_config: Mapping[str, Any], username: str, **_: Any) -> Login:
        """Return how to log in to one host, in the shape that fabric and paramiko ask for."""
        return Login(user=username, keys=self, ssh_config=ssh_config)

    def order(self, ssh_config: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the keys for a host in the order of trying, each once.

        Servers hang up after a few keys (MaxAuthTries, 6), so what was asked for comes first.
        """
        named = [
            Path(name).expanduser() for name in (*self._first, *ssh_config.get("identityfile", ()))
        ]
        only = ssh_config.get("identitiesonly", "no").lower() == "yes"
        if named:
            sources: Sequence[Any] = (*self._files(named), *self._agent(named if only else None))
        else:
            defaults = [Path(name).expanduser() for name in _DEFAULT_FILES]
            sources = (*self._agent(defaults if only else None), *self._files(defaults))
        seen = set()
        for key in sources:
            blob = key.asbytes()
            if blob not in seen:
                seen.add(blob)
                yield key

    def notes(self) -> str:
        """Return why some key files cannot be used; empty where all can."""
        with self._lock:
            return "; ".join(f"{path} {note}" for path, note in self._notes.items())

    def _files(self, paths: Sequence[Path]) -> Iterator[Any]:
        with self._lock:
            keys = [self._load(path) for path in paths]
        return (key for key in keys if key is not None)

    def _load(self, path: Path) -> Any:
        if path not in self._loaded:
            self._loaded[path] = None
            try:
                self._loaded[path] = paramiko.PKey.from_path(path)
            except FileNotFoundError:
                if str(path) in {str(Path(name).expanduser()) for name in self._first}:
                    self._notes[path] = "is missing"
            except OSError as error:
                self._notes[path] = f"cannot be read: {error.strerror}"
            except (paramiko.PasswordRequiredException, TypeError):
                # cryptography raises TypeError for a passphrase that was not given
                self._notes[path] = "has a passphrase: ssh-add it"
            except (ValueError, paramiko.SSHException):
                self._notes[path] = "is not a private key"
        return self._loaded[path]

    def _agent(self, only: Sequence[Path] | None) -> Iterator[Any]:
        """Return the agent's keys: all, or those whose public halves lie beside these files."""
        with self._lock:
            if self._agent_keys is None:
                try:
                    self._agent_keys = _Agent().get_keys()
                except (paramiko.SSHException, OSError):
                    self._agent_keys = ()
            keys = self._agent_keys
        if only is None:
            return iter(keys)
        allowed = {blob for path in only if (blob := _public_half(path)) is not None}
        return (key for key in keys if key.get_base64() in allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A log-in to one host."""

    user: str
    keys: Keys
    ssh_config: Mapping[str, Any]

    def authenticate(self, transport: Any) -> None:
        """Try one key after the other.

        Raises:
            LoginRefused: none of them was accepted.
        """
        tried = 0
        for key in self.keys.order(self.ssh_config):
            tried += 1
            try:
                more = transport.auth_publickey(self.user, key)
            except paramiko.BadAuthenticationType as error:
                allowed = ", ".join(error.allowed_types)
                raise LoginRefused(f"{self.user} cannot log in by key, only by {allowed}") from None
            except paramiko.AuthenticationException:
                if not transport.is_active():
                    break  # the server hangs up after too many keys
                continue
            if more:
                raise LoginRefused(f"{self.user} needs {', '.join(more)} beside the key")
            return
        keys = "there is no key to try" if not tried else _count(tried)
        notes = self.keys.notes()
        raise LoginRefused(f"user {self.user}: {keys}" + (f" ({notes})" if notes else ""))


def _count(tried: int) -> str:
    return "the key was refused" if tried == 1 else f"all {tried} keys were refused"


def _public_half(path: Path) -> str | None:
    try:
        fields = path.with_name(path.name + ".pub").read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return None
    return fields[1] if len(fields) > 1 else None
