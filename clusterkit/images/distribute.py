"""`clusterkit images distribute`: an image of this machine, brought to the engines of nodes.

Nothing is written to the node's own disk: the archive goes from the connection into the engine,
which compares each layer with the digest that the image's configuration names, and the
configuration with the digest of the image. What is broken off leaves nothing.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from pathlib import Path

from clusterkit.core.data import read_template
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import ClusterSpec, ContainerRuntime
from clusterkit.core.shell import quote
from clusterkit.core.text import cut
from clusterkit.core.untrusted import whole
from clusterkit.images.archive import (
    INSPECT,
    LAYERS,
    Archive,
    ImageFacts,
    Range,
    chunks,
    read_image,
    read_layers,
    save_image,
    size_of,
)
from clusterkit.images.engine import docker_error
from clusterkit.transport.probe import first_line
from clusterkit.transport.script import new_token
from clusterkit.transport.ssh.config import SshOptions
from clusterkit.transport.ssh.session import BROKEN, Session, Talk, on_nodes

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


_PIECE = 1 << 18
_UNPACKED = 2
"""An engine keeps what it is sent in its own temporary folder while it unpacks it."""
_ROOM = 16 << 20
_LONGEST = 500
"""Characters of what a node says of itself."""

Watch = Callable[[str, int, int], None]
"""Called with what is being done, and how many bytes of how many have been sent; by any thread,
never by two at a time."""


class Outcome(StrEnum):
    """What became of a node; the worst last."""

    THERE = "there already"
    SENT = "sent"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distributed:
    """One node, and how it got the image, or why it has not."""

    node: str
    outcome: Outcome
    bytes: int = 0
    """How many were sent: of the layers that were not there."""
    seconds: float = 0.0
    replaced: str | None = None
    """Digest of another build that had the image's name there before."""
    detail: str = ""
    hint: str | None = None


def require_engines(cluster: ClusterSpec) -> None:
    """Refuse a cluster whose nodes have no use for an image of Docker's.

    Raises:
        UserError: it is this machine, or its jobs run in images of another kind.
    """
    if cluster.kind.shares_machine:
        raise UserError(
            f"cluster {cluster.name} is this machine, which has the image already",
            hint="name another cluster: --cluster NAME",
        )
    if cluster.container_runtime not in {None, ContainerRuntime.DOCKER, ContainerRuntime.COMPOSE}:
        raise UserError(
            f"jobs on {cluster.name} run in {cluster.container_runtime}, which does not look into "
            "a node's Docker",
            hint="write an image file to a folder that the nodes share: clusterkit images export",
        )


def distribute_image(
    reference: str,
    image: ImageFacts,
    cluster: ClusterSpec,
    nodes: Sequence[str],
    *,
    watch: Watch = lambda _what, _sent, _total: None,
) -> tuple[Distributed, ...]:
    """Bring an image to all nodes at once: to each the layers that it does not have.

    Raises:
        UserError: ssh's configuration cannot be read, or there is no room to save the image.
        RemoteError: it cannot be saved.
    """
    options = SshOptions.of(cluster)
    watch("asking", 0, 0)
    answers = on_nodes(options, nodes, lambda node: look(node, reference, image))
    lacking = {
        node: answer
        for node, answer in answers.items()
        if isinstance(answer, EngineFacts)
        and answer.architecture == image.architecture
        and not (answer.named is not None and answer.named.is_same(image))
    }
    brought = _bring(reference, image, options, lacking, watch) if lacking else {}
    return tuple(_result(node, image, brought.get(node, answers[node])) for node in answers)


def _result(
    node: str, image: ImageFacts, answer: Distributed | EngineFacts | RemoteError
) -> Distributed:
    if isinstance(answer, Distributed):
        return answer
    if isinstance(answer, RemoteError):
        why, hint = cut(answer.message, _LONGEST), answer.hint
    elif answer.architecture != image.architecture:
        why = f"the image is for {image.architecture}, and the node is {answer.architecture}"
        hint = f"name an image for {answer.architecture}, for those nodes alone: --hosts LIST"
    else:
        return Distributed(node=node, outcome=Outcome.THERE)
    return Distributed(node=node, outcome=Outcome.FAILED, detail=why, hint=hint)


def _bring(
    reference: str,
    image: ImageFacts,
    options: SshOptions,
    engines: Mapping[str, EngineFacts],
    watch: Watch,
) -> dict[str, Distributed | RemoteError]:
    """Send to engines what they lack, or the name alone where that is all."""
    with tempfile.TemporaryDirectory(prefix="clusterkit-image-") as folder:
        delivery: Delivery | None = None
        if not all(engine.has_it for engine in engines.values()):
            watch("saving", 0, 0)
            archive = save_image(reference, image, Path(folder))
            delivery = Delivery(reference, image, archive, engines, watch)

        def work(session: Session) -> Distributed:
            engine = engines[session.node]
            if engine.has_it or delivery is None:
                tag(session, reference, image)
                return _arrived(session.node, engine)
            return delivery.to(session, engine)

        return on_nodes(options, tuple(engines), work)


@dataclass(slots=True)
class Delivery:
    """One archive on its way to many nodes; `watch` is told how much of it all."""

    reference: str
    image: ImageFacts
    archive: Archive
    engines: Mapping[str, EngineFacts]
    watch: Watch
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _sent: int = field(default=0, init=False)
    _total: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        lacking = (one.lowest for one in self.engines.values() if not one.has_it)
        self._total = sum(size_of(self.archive.without(lowest)) for lowest in lacking)
        self.watch("sending", 0, self._total)

    def to(self, session: Session, engine: EngineFacts) -> Distributed:
        """Bring it to one node.

        Raises:
            RemoteError: the node does not take it.
        """
        began = time.monotonic()
        ranges = self.archive.without(engine.lowest)
        size = size_of(ranges)
        _require_room(session.node, engine, size)
        try:
            load(session, self.reference, self.image, self._pieces(ranges))
        except NotTaken:
            if not engine.lowest:
                raise
            # It wants all layers in any case, or somebody has removed one since it was asked.
            whole = self.archive.without(0)
            _require_room(session.node, engine, size_of(whole))
            with self._lock:
                self._total += size_of(whole)
            load(session, self.reference, self.image, self._pieces(whole))
            size += size_of(whole)
        return _arrived(session.node, engine, size=size, seconds=round(time.monotonic() - began, 1))

    def _pieces(self, ranges: tuple[Range, ...]) -> Iterator[bytes]:
        for piece in chunks(self.archive, ranges, _PIECE):
            yield piece
            with self._lock:
                self._sent += len(piece)
                self.watch("sending", self._sent, self._total)


def _arrived(node: str, engine: EngineFacts, *, size: int = 0, seconds: float = 0.0) -> Distributed:
    return Distributed(
        node=node,
        outcome=Outcome.SENT,
        bytes=size,
        seconds=seconds,
        replaced=engine.named.digest if engine.named else None,
        detail="" if size else "only its name was missing",
    )


def _require_room(node: str, engine: EngineFacts, size: int) -> None:
    needed = _UNPACKED * size + _ROOM
    if engine.free is not None and engine.free < needed:
        raise RemoteError(
            f"{needed >> 20} MiB are needed on the disk of Docker, and {engine.free >> 20} MiB "
            "are free",
            node=node,
            hint="make room there: docker system df; docker image prune",
        )
