"""Which clusters an image of Docker's is brought to, and to which of their nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import ClusterKind, ClusterSpec, ContainerRuntime
from clusterkit.images import distribute
from clusterkit.images.archive import Archive, ImageFacts
from clusterkit.images.distribute import (
    Delivery,
    Distributed,
    EngineFacts,
    Outcome,
    distribute_image,
    load,
    require_engines,
)

IMAGE = ImageFacts(
    digest="sha256:ab", created="now", architecture="amd64", size=9, layers=("sha256:1",)
)
HAS_IT = EngineFacts(architecture="amd64", named=IMAGE, has_it=True, lowest=1, free=None)


@pytest.mark.parametrize("runtime", [None, ContainerRuntime.DOCKER, ContainerRuntime.COMPOSE])
def test_clusters_that_may_have_docker_are_taken(runtime: ContainerRuntime | None) -> None:
    require_engines(ClusterSpec(name="c", kind=ClusterKind.SLURM, container_runtime=runtime))


@pytest.mark.parametrize(
    ("kind", "runtime", "says"),
    [
        (ClusterKind.LOCAL, ContainerRuntime.DOCKER, "c is this machine"),
        (ClusterKind.SSH, ContainerRuntime.APPTAINER, "c run in apptainer, which does not look"),
        (ClusterKind.SLURM, ContainerRuntime.PYXIS, "c run in pyxis, which does not look"),
    ],
)
def test_clusters_that_have_no_use_for_it_are_refused(
    kind: ClusterKind, runtime: ContainerRuntime, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        require_engines(ClusterSpec(name="c", kind=kind, container_runtime=runtime))


def test_nodes_of_another_architecture_get_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    arm = EngineFacts(architecture="arm64", named=None, has_it=False, lowest=0, free=None)
    answers = {"n1": HAS_IT, "n2": arm, "n3": RemoteError("no route", node="n3", hint="look")}

    def asked(_options: Any, nodes: Any, _work: Any) -> dict[str, Any]:
        return {node: answers[node] for node in nodes}

    monkeypatch.setattr(distribute, "on_nodes", asked)
    cluster = ClusterSpec(name="c", kind=ClusterKind.SSH)
    done = distribute_image("x:1", IMAGE, cluster, tuple(answers))
    assert done == (
        Distributed(node="n1", outcome=Outcome.THERE),
        Distributed(
            node="n2",
            outcome=Outcome.FAILED,
            detail="the image is for amd64, and the node is arm64",
            hint="name an image for arm64, for those nodes alone: --hosts LIST",
        ),
        Distributed(node="n3", outcome=Outcome.FAILED, detail="no route", hint="look"),
    )


def test_a_disk_without_room_to_unpack_is_sent_nothing() -> None:
    archive = Archive(path=Path("image.tar"), size=100 << 20, layers=())
    full = EngineFacts(architecture="amd64", named=None, has_it=False, lowest=0, free=150 << 20)
    delivery = Delivery("x:1", IMAGE, archive, {"n1": full}, lambda *_: None)
    session: Any = SimpleNamespace(node="n1")
    with pytest.raises(RemoteError, match="216 MiB are needed on the disk of Docker, and 150 MiB"):
        delivery.to(session, full)


def test_a_node_that_has_loaded_another_image_is_told() -> None:
    lines = iter([None, b"sha256:cd later amd64 9 sha256:2,", None])
    talk = SimpleNamespace(
        line=lambda: next(lines), expect=lambda _: None, send=len, end_input=lambda: None
    )
    session: Any = SimpleNamespace(node="n1", talk=lambda _: talk)
    with pytest.raises(RemoteError, match="x:1 is sha256:cd there after it was loaded"):
        load(session, "x:1", IMAGE, [b"layers"])
