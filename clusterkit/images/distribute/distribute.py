"""`clusterkit images distribute`: an image of this machine, brought to the engines of nodes."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import ClusterSpec, ContainerRuntime
from clusterkit.core.text.listing import cut
from clusterkit.images.distribute import image_nodes
from clusterkit.images.distribute.image_archive import (
    Archive,
    ImageFacts,
    Range,
    chunks,
    save_image,
    size_of,
)
from clusterkit.images.distribute.image_nodes import EngineFacts
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
    asked = on_nodes(options, nodes, lambda node: image_nodes.look(node, reference, image))
    done = {node: _without_sending(node, image, answer) for node, answer in asked.items()}
    engines = {
        node: answer
        for node, answer in asked.items()
        if isinstance(answer, EngineFacts) and done[node] is None
    }
    if engines:
        brought = _bring(reference, image, options, engines, watch)
        done |= {node: _told(node, answer) for node, answer in brought.items()}
    return tuple(one for one in done.values() if one is not None)


def _without_sending(
    node: str, image: ImageFacts, answer: EngineFacts | RemoteError
) -> Distributed | None:
    """Return what is to be said of a node already; None where it is to get something."""
    if isinstance(answer, RemoteError):
        return _told(node, answer)
    if answer.architecture != image.architecture:
        why = f"the image is for {image.architecture}, and the node is {answer.architecture}"
        return Distributed(
            node=node,
            outcome=Outcome.FAILED,
            detail=why,
            hint=f"name an image for {answer.architecture}, for those nodes alone: --hosts LIST",
        )
    if answer.named is not None and answer.named.is_same(image):
        return Distributed(node=node, outcome=Outcome.THERE)
    return None


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


class Delivery:
    """One archive on its way to many nodes."""

    def __init__(
        self,
        reference: str,
        image: ImageFacts,
        archive: Archive,
        engines: Mapping[str, EngineFacts],
        watch: Watch,
    ) -> None:
        """Tell `watch` how much will be sent to all `engines`."""
        self._reference = reference
        self._image = image
        self._archive = archive
        self._watch = watch
        self._lock = threading.Lock()
        self._sent = 0
        self._total = sum(
            size_of(archive.without(one.lowest)) for one in engines.values() if not one.has_it
        )
        watch("sending", 0, self._total)

    def to(self, session: Session, engine: EngineFacts) -> Distributed:
        """Bring it to one node.

        Raises:
            RemoteError: the node does not take it.
        """
        began = time.monotonic()
        ranges = self._archive.without(engine.lowest)
        size = size_of(ranges)
        _require_room(session.node, engine, size)
        try:
            image_nodes.load(session, self._reference, self._image, self._pieces(ranges))
        except image_nodes.NotTaken:
            if not engine.lowest:
                raise
            # It wants all layers in any case, or somebody has removed one since it was asked.
            whole = self._archive.without(0)
            _require_room(session.node, engine, size_of(whole))
            with self._lock:
                self._total += size_of(whole)
            image_nodes.load(session, self._reference, self._image, self._pieces(whole))
            size += size_of(whole)
        return _arrived(session.node, engine, size=size, seconds=round(time.monotonic() - began, 1))

    def _pieces(self, ranges: tuple[Range, ...]) -> Iterator[bytes]:
        for piece in chunks(self._archive, ranges, _PIECE):
            yield piece
            with self._lock:
                self._sent += len(piece)
                self._watch("sending", self._sent, self._total)


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


def _told(node: str, answer: Distributed | RemoteError) -> Distributed:
    if isinstance(answer, Distributed):
        return answer
    why = cut(answer.message, _LONGEST)
    return Distributed(node=node, outcome=Outcome.FAILED, detail=why, hint=answer.hint)
