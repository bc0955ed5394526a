"""`clusterkit images distribute`: an image of this machine, brought to the engines of nodes."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import ClusterSpec, ContainerRuntime
from clusterkit.core.text import cut
from clusterkit.images import nodes as image_nodes
from clusterkit.images.archive import (
    Archive,
    ImageFacts,
    Range,
    chunks,
    save_image,
    size_of,
)
from clusterkit.images.nodes import EngineFacts
from clusterkit.transport.ssh.config import SshOptions
from clusterkit.transport.ssh.session import Session, on_nodes

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
    answers = on_nodes(options, nodes, lambda node: image_nodes.look(node, reference, image))
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
                image_nodes.tag(session, reference, image)
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
            image_nodes.load(session, self.reference, self.image, self._pieces(ranges))
        except image_nodes.NotTaken:
            if not engine.lowest:
                raise
            # It wants all layers in any case, or somebody has removed one since it was asked.
            whole = self.archive.without(0)
            _require_room(session.node, engine, size_of(whole))
            with self._lock:
                self._total += size_of(whole)
            image_nodes.load(session, self.reference, self.image, self._pieces(whole))
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
