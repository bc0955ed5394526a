"""A metadata server as `init` asks it: what it answers, and what it may answer instead."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from clusterkit.config.init import discover, starter_text
from clusterkit.config.load import load_settings
from clusterkit.config.platforms import instance_type_of
from clusterkit.core import metadata
from clusterkit.core.commands import Answer
from tests.unit.config.test_platforms import SIGNS, write_machine

AZURE = next(sign for sign in SIGNS if sign["platform"] == "azure-nd")
CLOUDS = {
    "azure-nd": ("Standard_ND96isr_H100_v5", "Metadata: true"),
    "azure-gb": ("Standard_ND128isr_GB300_v6", "Metadata: true"),
    "gcp-gib": ("projects/12/machineTypes/a4-highgpu-8g", "Metadata-Flavor: Google"),
    "gcp-tcpx": ("projects/12/machineTypes/a3-highgpu-8g", "Metadata-Flavor: Google"),
    "gcp-tcpxo": ("projects/12/machineTypes/a3-megagpu-8g", "Metadata-Flavor: Google"),
    "oci-roce": ("BM.GPU.H100.8", "Authorization: Bearer Oracle"),
}


def _whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@contextmanager
def _server(reply: Callable[[socket.socket], None], asked: list[bytes]) -> Iterator[None]:
    """Serve one connection on the loopback, and note what it asks."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            try:
                connection, _ = listening.accept()
                with connection:
                    asked.append(connection.recv(4096))
                    reply(connection)
            except OSError:
                pass  # nobody came, or the other side has had enough

        Thread(target=serve, daemon=True).start()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(metadata, "ADDRESS", listening.getsockname())
            yield


def _nothing(_: Sequence[str]) -> Answer:
    return Answer(code=127, ran=False)


def _slurm(argv: Sequence[str]) -> Answer:
    listed = Answer(code=0, output="gpu*|2|infinite|gpu:8|96|2000000|n/a\n")
    return listed if argv[0] == "sinfo" else _nothing(argv)


def _hang(connection: socket.socket) -> None:
    connection.settimeout(None)
    connection.recv(1)  # until the other side has had enough


def _drip(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:  # until the other side has had enough
        connection.sendall(b"a")
        time.sleep(0.1)


@pytest.mark.parametrize("platform", CLOUDS)
def test_init_writes_what_this_machine_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    answer, header = CLOUDS[platform]
    sign = next(sign for sign in SIGNS if sign["platform"] == platform)
    machine = write_machine(tmp_path / "machine", sign)
    monkeypatch.setenv("CLUSTERKIT_MACHINE_ROOT", str(machine))
    asked: list[bytes] = []
    with _server(lambda connection: connection.sendall(_whole(answer.encode())), asked):
        found = discover(
            _slurm,
            cwd=tmp_path,
            system=(),
        )
    assert header.encode() in asked[0]
    kind = answer.rpartition("/")[2]
    assert (found.platform and found.platform.name, found.instance_type) == (platform, kind)
    text = starter_text(found, folder=tmp_path)
    (tmp_path / "clusterkit.yaml").write_text(text)
    assert f"# instance_type: {kind}  # that of the nodes" in text
    settings = load_settings(cwd=tmp_path, environ={})
    assert settings.cluster("cluster").platform == platform
    assert settings.cluster("local").instance_type == kind


def test_nothing_is_asked_where_it_need_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    with _server(lambda connection: None, asked):
        assert instance_type_of(tmp_path) is None  # bare metal
        aws = write_machine(tmp_path / "aws", SIGNS[0])
        (aws / "sys/class/dmi/id/product_name").write_text("p5.48xlarge\n")
        assert instance_type_of(aws) == "p5.48xlarge"
        azure = write_machine(tmp_path / "azure", AZURE)
        monkeypatch.setenv("CLUSTERKIT_MACHINE_ROOT", str(azure))
        monkeypatch.setenv("CLUSTERKIT_PLATFORM", "off")
        found = discover(_nothing, cwd=tmp_path, system=())
        assert (found.platform, found.platforms) == (None, ())
    assert asked == []


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(_hang, id="hangs"),
        pytest.param(_drip, id="drips"),
        pytest.param(lambda connection: connection.sendall(_whole(b"x" * 9999)), id="huge"),
        pytest.param(lambda c: c.sendall(_whole(b"<html>log in</html>")), id="html"),
        pytest.param(lambda c: c.sendall(_whole(b"p5", b"404 Not Found")), id="404"),
        pytest.param(lambda c: c.sendall(_whole(b"p5", b"302 Found")), id="redirect"),
        pytest.param(lambda c: c.sendall(b"\x00" * 70_000), id="no-http"),
        pytest.param(lambda c: c.sendall(_whole(b"a\x1b[31m")), id="control"),
        pytest.param(lambda c: None, id="closes"),
    ],
)
def test_a_server_that_lies_or_is_silent(
    tmp_path: Path, reply: Callable[[socket.socket], None]
) -> None:
    machine = write_machine(tmp_path, AZURE)
    with _server(reply, []):
        assert instance_type_of(machine) is None  # of two there is no end of the answer


def test_a_type_that_the_platform_does_not_list_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERKIT_MACHINE_ROOT", str(write_machine(tmp_path / "machine", AZURE)))
    with _server(lambda connection: connection.sendall(_whole(b"Standard_D4s_v5")), []):
        found = discover(_nothing, cwd=tmp_path, system=())
    assert (found.platform and found.platform.name, found.instance_type) == ("azure-nd", None)


def test_a_cloud_without_its_fabric_gets_a_comment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    google = {"dmi": "product_name", "says": "Google Compute Engine", "path": "-"}
    monkeypatch.setenv("CLUSTERKIT_MACHINE_ROOT", str(write_machine(tmp_path, google)))
    found = discover(
        _slurm,
        cwd=tmp_path,
        system=(),
    )
    assert found.platform is None
    assert "# this cloud has gcp-gib, gcp-tcpxo, gcp-tcpx" in starter_text(found, folder=tmp_path)
