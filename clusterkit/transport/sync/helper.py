"""A conversation with one node, in whose Python `programs/sync/node.py` does the other half."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from clusterkit.core import files
from clusterkit.core.data import read_template
from clusterkit.core.errors import RemoteError
from clusterkit.core.records import record_of
from clusterkit.core.shell import quote, quote_path
from clusterkit.transport.script import new_token
from clusterkit.transport.ssh.session import AGAIN, BROKEN, Nonsense, Session

T = TypeVar("T")

_CANNOT_RUN = frozenset({126, 127})
"""Exit codes of sh for a program that is missing, or cannot be started."""
_GREETING = 1 << 20
"""Bytes that a login may print before the program speaks."""
_GREETING_S = 60.0
"""For a login and the start of the program, both on a busy node."""
_ANSWER_S = 3600.0
"""For an answer: pip may have to fetch and unpack a few GiB."""
_ERROR = 1000
"""Characters of an error of the node that are told."""


class NoPython(RemoteError):  # noqa: N818 - a state of the node, not a mistake of anyone
    """The node has no such Python, or cannot start it."""


class Helper:
    """The program on the node: it answers requests until the conversation ends."""

    def __init__(self, session: Session, python: str) -> None:
        """Start it under `python`, a command or a path there.

        Raises:
            NoPython: there is none.
            RemoteError: it did not start, or says something else.
        """
        self.node = session.node
        self.python = python
        self._has_begun = False
        token = new_token()
        program = read_template("programs/sync/node.py")
        command = f"{quote_path(python)} -I -X utf8 -c {quote(program)} {token}"
        self.talk = session.talk(f"exec {command}\n")
        # Also what a login prints of its own stands before the token.
        greeting = 0
        self.talk.expect(_GREETING_S)
        while (line := self.talk.line()) is not None:
            if line == token.encode():
                self._has_begun = True
                return
            greeting += len(line) + 1
            if greeting > _GREETING:
                raise self.nonsense(f"a greeting of more than {_GREETING} bytes")
        raise self._silence()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            RemoteError: the node could not do it; in its words.
        """
        self.tell(do, **request)
        return self.answer()

    def ask_for(self, kind: type[T], do: str, **request: Any) -> T:
        """Return the answer to a request, which has to be one of this kind.

        Raises:
            Nonsense: it is none.
            RemoteError: the node could not do it; in its words.
        """
        self.tell(do, **request)
        return self.answer_of(kind)

    def answer_of(self, kind: type[T]) -> T:
        """Return the next answer, which has to be one of this kind.

        Raises:
            RemoteError: as `ask_for`.
        """
        return self.record(kind, self.answer())

    def record(self, kind: type[T], document: Mapping[str, Any]) -> T:
        """Return the record that an answer describes.

        Raises:
            Nonsense: it describes none.
        """
        found = record_of(kind, document)
        if found is None:
            raise self.nonsense(f"it was asked for {kind.__doc__}")
        return found

    def nonsense(self, what: str) -> Nonsense:
        """Return the error that says what this node says."""
        return Nonsense(what, node=self.node)

    def tell(self, do: str, **request: Any) -> None:
        """Send a request whose answers are fetched by `answer`."""
        self.send(json.dumps({"do": do, **request}).encode() + b"\n")

    def send(self, data: bytes) -> None:
        """Send bytes; where the node no longer wants them, raise what it says instead.

        Raises:
            RemoteError: as `answer`.
        """
        self.talk.expect(_ANSWER_S)
        try:
            self.talk.send(data)
        except OSError:
            self.answer()
            raise

    def answer(self) -> dict[str, Any]:
        """Return the next answer.

        Raises:
            RemoteError: the node could not do what it was asked for; in its words.
        """
        self.talk.expect(_ANSWER_S)
        while (line := self.talk.line()) == b"":
            pass  # a sign of life
        if line is None:
            raise self._silence()
        document = files.parse_json(line)
        if document is None:
            raise self.nonsense(f"no JSON object: {line[:60].decode(errors='replace')!r}")
        if "error" in document:
            message = str(document["error"])[:_ERROR].encode(errors="replace").decode()
            message = " ".join(message.split())  # a second line may look like a hint
            raise RemoteError(message, node=self.node)
        return document

    def take(self, count: int) -> bytes:
        """Return the bytes behind an answer."""
        return self.talk.take(count)

    def _silence(self) -> RemoteError:
        code, error_output = self.talk.exit_code(), self.talk.error_output()
        if code in _CANNOT_RUN:
            return NoPython(f"{self.python} cannot be run there", node=self.node)
        if error_output:
            return RemoteError(error_output.splitlines()[-1], node=self.node)
        if self._has_begun:
            return RemoteError(BROKEN, node=self.node, hint=AGAIN)
        return RemoteError(f"{self.python} ended at once, exit code {code}", node=self.node)
