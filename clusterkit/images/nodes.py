"""What is asked of a node's Docker engine to bring an image to it: programs of sh, and answers.

Nothing is written to the node's own disk: the archive goes from the connection into the engine,
which compares each layer with the digest that the image's configuration names, and the
configuration with the digest of the image. What is broken off leaves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from clusterkit.core.data import read_template
from clusterkit.core.errors import RemoteError
from clusterkit.core.shell import quote
from clusterkit.core.untrusted import whole
from clusterkit.images.archive import (
    INSPECT,
    LAYERS,
    ImageFacts,
    read_image,
    read_layers,
)
from clusterkit.images.engine import docker_error
from clusterkit.transport.probe import first_line
from clusterkit.transport.script import new_token
from clusterkit.transport.ssh.session import BROKEN, Session, Talk

_ANSWER_S = 120.0
"""For an engine to say what it has."""
_LOADED_S = 4 * 3600.0
"""For an engine to be sent an image of tens of GiB, and to unpack it."""
_MOST = 4 << 20
"""Bytes of an answer: a line of some KiB for each of a thousand images."""
_A_LINE = 100
"""Bytes that a line costs beside its own."""


class NotTaken(RemoteError):  # noqa: N818 - a state of the node, not a mistake of anyone
    """The engine makes nothing of the archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine has of an image before it is sent."""

    architecture: str
    named: ImageFacts | None
    """What has the image's name there."""
    has_it: bool
    """Whether the same build is there, under any name."""
    lowest: int
    """How many of its layers are there, counted from the lowest."""
    free: int | None
    """Bytes on the disk of the engine; None where only the engine may look."""


def look(session: Session, reference: str, image: ImageFacts) -> EngineFacts:
    """Ask a node what of an image it has.

    Raises:
        RemoteError: there is no engine, or it does not let us.
    """
    talk = session.talk(_program("look", INSPECT, LAYERS, reference, image.digest))
    lines = _lines(talk)
    if "end=" not in lines:
        raise _failed(session.node, talk)
    engine = {key: value for key, _, value in (line.partition("=") for line in lines)}
    named = _read(session.node, engine["named"]) if "named" in engine else None
    there = _read(session.node, engine["there"]) if "there" in engine else named
    stacks = [read_layers(line.removeprefix("layers=")) for line in lines if line[:7] == "layers="]
    return EngineFacts(
        architecture=first_line(engine["engine"]),
        named=named,
        has_it=there is not None and there.is_same(image),
        lowest=max((_shared(image.layers, stack) for stack in stacks), default=0),
        free=whole(engine["free"]) << 10 if engine.get("free", "").isdigit() else None,
    )


def load(session: Session, reference: str, image: ImageFacts, data: Iterable[bytes]) -> None:
    """Send an archive into a node's engine, and look at what has become of it.

    Raises:
        NotTaken: the engine makes nothing of it; where layers were left out it may want those.
        RemoteError: there is no room, the connection broke, or it has made another image of it.
    """
    token = new_token()
    talk = session.talk(_program("load", INSPECT, reference, token))
    _lines(talk, until=token.encode())  # what a login prints of its own is before it
    talk.expect(_LOADED_S)
    with suppress(OSError):  # docker has ended, and says why
        for piece in data:
            talk.send(piece)
        talk.end_input()
    lines = [line for line in _lines(talk, within_s=_LOADED_S) if line]
    if not lines:
        failed = _failed(session.node, talk)
        # A trouble that we know has a hint, and the layers are not to blame for it.
        raise failed if failed.hint else NotTaken(failed.message, node=session.node)
    loaded = _read(session.node, lines[-1])
    if not loaded.is_same(image):
        raise RemoteError(
            f"{reference} is {loaded.digest} there after it was loaded",
            node=session.node,
            hint="somebody else may have brought another image of that name: run it again",
        )


def tag(session: Session, reference: str, image: ImageFacts) -> None:
    """Give an image that a node has its name.

    Raises:
        RemoteError: the engine does not.
    """
    names = quote(image.digest), quote(reference)
    talk = session.talk(f"LC_ALL=C exec docker tag {' '.join(names)}\n")
    _lines(talk)
    if talk.exit_code():
        raise _failed(session.node, talk)


def _program(name: str, *arguments: str) -> str:
    quoted = " ".join(map(quote, arguments))
    return f"set -- {quoted}\n{read_template(f'programs/images/{name}.sh')}"


def _lines(talk: Talk, *, within_s: float = _ANSWER_S, until: bytes | None = None) -> list[str]:
    """Return the output to its end, or to the line `until`.

    Raises:
        ValueError: it has more than an engine has to say.
    """
    talk.expect(within_s)
    lines: list[str] = []
    size = 0
    while (line := talk.line()) is not None and line != until:
        lines.append(line.decode(errors="replace"))
        size += len(line) + _A_LINE
        if size > _MOST:
            raise ValueError(f"more than {_MOST >> 20} MiB about its images")
    return lines


def _read(node: str, line: str) -> ImageFacts:
    try:
        return read_image(line)
    except ValueError as error:
        raise RemoteError(
            f"docker describes the image as {line[:80]!r}",
            node=node,
            hint="is it Docker? `docker version` tells; podman's command of that name is not",
        ) from error


def _shared(one: Iterable[str], other: Iterable[str]) -> int:
    """Return how many layers two images have in common, from the lowest up."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _failed(node: str, talk: Talk) -> RemoteError:
    code = talk.exit_code()  # once the script has ended, all that it said is there
    error_output = talk.error_output()
    if code < 0 and not error_output:
        return RemoteError(BROKEN, node=node, hint="run it again: no partial image is kept there")
    error = docker_error(error_output)
    return RemoteError(error.message, node=node, hint=error.hint)
