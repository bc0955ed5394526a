"""An image brought to the Docker engines of hosts of the practice cluster, and what may go wrong.

Three hosts have an engine each, the desk another one; nothing is shared between them.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.errors import RemoteError
from clusterkit.images import distribute as image_nodes
from clusterkit.images.archive import (
    INSPECT,
    ImageFacts,
    chunks,
    read_image,
    save_image,
    size_of,
)
from clusterkit.images.distribute import Delivery, Outcome
from tests.docker.engine import Engine, EngineError
from tests.docker.hosts import engine_in, offer
from tests.helpers.desk import Desk
from tests.helpers.here import TalkHere
from tests.helpers.lab_faults import mounted, slow_link
from tests.helpers.lab_jobs import await_true, one_process
from tests.helpers.needs import lack
from tests.lab import Lab

pytestmark = [pytest.mark.docker, pytest.mark.lab]

IMAGE = "ck-try/app:1"
BIG = 24 << 20


@dataclass(frozen=True)
class Rack:
    """A desk with an engine, and hosts with one each."""

    desk: Desk
    home: Engine
    engines: dict[str, Engine]
    folder: Path

    def build(self, text: str, *, beside: str = "big") -> ImageFacts:
        """Build an image of two layers: the same large file each time, and one with this text."""
        context = self.folder / "context"
        context.mkdir(exist_ok=True)
        (context / "text").write_text(text)
        lines = f"FROM scratch\nADD {beside} /\nCOPY text /\n"
        (context / "Dockerfile").write_text(lines)
        build = ("build", "--quiet", "--tag", IMAGE, str(context))
        self.home.run(*build, env={"DOCKER_BUILDKIT": "0"})  # small: no builder to start
        return read_image(self.home.run("image", "inspect", "--format", INSPECT, IMAGE).strip())

    def distribute(
        self, *words: str, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the command at the desk, for the cluster `rack`."""
        where = {"DOCKER_HOST": f"unix://{self.home.socket}", **(env or {})}
        return self.desk.clusterkit("images", "distribute", *words, "-c", "rack", env=where)

    def clear(self) -> None:
        """Remove all images from the hosts."""
        for engine in self.engines.values():
            if images := engine.run("image", "ls", "--all", "--quiet").split():
                engine.run("image", "rm", "--force", *set(images))

    def digests(self, reference: str = IMAGE) -> dict[str, str]:
        """Return what each host has under a name; nothing where it has none."""
        words = ("image", "inspect", "--format", "{{.Id}}", reference)
        return {host: one.call(*words).stdout.strip() for host, one in self.engines.items()}


@pytest.fixture(scope="module")
def whole_rack(lab: Lab) -> Iterator[Rack]:
    folder = Path(tempfile.mkdtemp(prefix="dk-", dir="/tmp"))
    home = Engine(folder / "home")
    engines = {host: engine_in(lab, host, folder / host) for host in lab.nodes}
    try:
        for engine in (home, *engines.values()):
            engine.up()
        for host, engine in engines.items():
            offer(lab, host, engine)
        (folder / "context").mkdir()
        (folder / "context" / "big").write_bytes(os.urandom(BIG))
        yield Rack(Desk.of(lab, "distribute"), home, engines, folder)
    except EngineError as error:
        lack(f"Docker engine: {error}")
    finally:
        for engine in (home, *engines.values()):
            engine.down()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def rack(whole_rack: Rack) -> Rack:
    """Give the rack with nothing on its hosts."""
    whole_rack.clear()
    return whole_rack


def test_all_nodes_get_the_same_build_and_are_then_left_alone(rack: Rack) -> None:
    image = rack.build("one")
    done = rack.distribute(IMAGE)
    assert done.returncode == 0, done.stderr
    line = rf"n\[1-3\]  {IMAGE}  {image.digest[:19]}  sent  25 MB in \d+(\.\d)? s\n"
    assert re.fullmatch(line, done.stdout), done.stdout
    assert set(rack.digests().values()) == {image.digest}
    assert done.stderr == ""
    again = rack.distribute(IMAGE)
    assert (again.returncode, again.stdout) == (
        0,
        f"n[1-3]  {IMAGE}  {image.digest[:19]}  there already\n",
    )


def test_only_layers_that_a_node_lacks_are_sent(rack: Rack) -> None:
    first = rack.build("one")
    assert rack.distribute(IMAGE, "--hosts", "n[1-2]").returncode == 0
    second = rack.build("two")
    done = rack.distribute(IMAGE, "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["schema"]) == (0, 1)
    assert (document["image"], document["digest"]) == (IMAGE, second.digest)
    told = {one["node"]: (one["outcome"], one["replaced"]) for one in document["nodes"]}
    replaced = ("sent", first.digest)
    assert told == {"n1": replaced, "n2": replaced, "n3": ("sent", None)}
    sizes = {one["node"]: one["bytes"] for one in document["nodes"]}
    assert sizes["n1"] == sizes["n2"] < 1 << 16 < BIG < sizes["n3"]
    rack.build("three")
    shown = rack.distribute(IMAGE)
    told_of_all = rf"sent  \d\d? kB in \d\.\d s, in place of {second.digest[:19]}\n"
    assert re.search(told_of_all, shown.stdout), shown.stdout
    assert len(set(rack.digests().values()) - {second.digest}) == 1


def test_an_image_that_lacks_its_name_gets_that_alone(rack: Rack) -> None:
    image = rack.build("one")
    rack.distribute(IMAGE)
    rack.engines["n2"].run("tag", IMAGE, "ck-try/other:1")
    rack.engines["n2"].run("image", "rm", IMAGE)
    done = rack.distribute(IMAGE)
    assert done.stdout.splitlines() == [
        f"n[1,3]  {IMAGE}  {image.digest[:19]}  there already",
        f"n2      {IMAGE}  {image.digest[:19]}  sent  only its name was missing",
    ]
    assert set(rack.digests().values()) == {image.digest}


def test_preflight_names_the_node_with_another_build_of_the_tag(rack: Rack) -> None:
    image = rack.build("one")
    rack.distribute(IMAGE)
    other = rack.build("two")
    rack.distribute(IMAGE, "--hosts", "n2")
    rack.build("one")  # from the cache: what the others have
    (rack.desk.folder / "docker.yaml").write_text(
        (rack.desk.folder / "clusterkit.yaml").read_text().replace(
            "kind: ssh", "kind: ssh\n    container_runtime: docker"
        )
    )  # fmt: skip
    done = rack.desk.clusterkit(
        "--config-file", "docker.yaml", "preflight", "-c", "rack", "--image", IMAGE, "--select",
        "ENV003", "--json", env={"DOCKER_HOST": f"unix://{rack.home.socket}"},
    )  # fmt: skip
    findings = {one["verdict"]: one for one in json.loads(done.stdout)["findings"]}
    assert (done.returncode, findings["fail"]["nodes"]) == (1, ["n2"]), done.stdout
    assert findings["pass"]["nodes"] == ["n1", "n3"]
    assert other.digest in findings["fail"]["summary"]
    assert image.digest in findings["fail"]["summary"]


def test_what_is_wrong_with_some_nodes_does_not_keep_the_others_waiting(rack: Rack) -> None:
    image = rack.build("one")
    lab = rack.desk.lab
    lab.run("n2", ["ln", "-sfn", "/nowhere.sock", "/run/docker.sock"], check=True)
    clients = [path for path in ("/usr/bin/docker", "/usr/local/bin/docker") if Path(path).exists()]
    try:
        with mounted(lab, "n3", "--bind", "/dev/null", clients[0]), _hidden(lab, "n3", clients[1:]):
            done = rack.distribute(IMAGE, "--json")
            shown = rack.distribute(IMAGE)
    finally:
        offer(lab, "n2", rack.engines["n2"])
    told = {one["node"]: one for one in json.loads(done.stdout)["nodes"]}
    assert done.returncode == shown.returncode == 1
    assert told["n1"]["outcome"] == "sent"
    assert (told["n2"]["outcome"], told["n2"]["detail"]) == (
        "failed",
        "the Docker daemon does not answer",
    )
    assert "systemctl start docker" in told["n2"]["hint"]
    assert (told["n3"]["outcome"], told["n3"]["detail"]) == (
        "failed",
        "no permission to run docker",
    )
    lines = shown.stdout.splitlines()
    assert lines[0] == f"n1  {IMAGE}  {image.digest[:19]}  there already"
    assert lines[1] == "n2  failed  the Docker daemon does not answer"
    assert lines[2].startswith("    hint: sudo systemctl start docker")
    assert rack.digests() == {"n1": image.digest, "n2": "", "n3": ""}


@contextmanager
def _hidden(lab: Lab, host: str, paths: list[str]) -> Iterator[None]:
    if not paths:
        yield
        return
    with mounted(lab, host, "--bind", "/dev/null", paths[0]), _hidden(lab, host, paths[1:]):
        yield


@contextmanager
def small_disk(rack: Rack, host: str, size: str) -> Iterator[Engine]:
    """Give a host an engine on a disk of this size instead of its own."""
    lab = rack.desk.lab
    root = rack.folder / f"small-{host}"
    data = root / "data"
    data.mkdir(parents=True, exist_ok=True)
    with mounted(lab, host, "-t", "tmpfs", "-o", f"size={size}", "small", str(data)):
        engine = engine_in(lab, host, root)
        engine.up()
        offer(lab, host, engine)
        try:
            yield engine
        finally:
            engine.down(keep=True)
            offer(lab, host, rack.engines[host])


def test_a_disk_that_is_too_small_is_told_before_anything_is_sent(rack: Rack) -> None:
    rack.build("one")
    with small_disk(rack, "n3", "60m"):
        done = rack.distribute(IMAGE, "--hosts", "n[2-3]")
    assert done.returncode == 1
    last = done.stdout.splitlines()[1:]
    assert re.fullmatch(
        r"n3  failed  64 MiB are needed on the disk of Docker, and 59 MiB are free", last[0]
    )
    assert "docker image prune" in last[1]


def test_a_disk_that_fills_up_on_the_way_leaves_nothing(rack: Rack) -> None:
    (rack.folder / "context" / "many.tar").write_bytes(_many_files(8000))
    image = rack.build("many", beside="many.tar")
    (rack.folder / "context" / "many.tar").unlink()
    # A file of one byte takes a page of such a disk, and less in the archive.
    with small_disk(rack, "n3", "37m") as engine:
        done = rack.distribute(IMAGE, "--hosts", "n3")
        assert done.returncode == 1
        assert done.stdout.splitlines()[0] == "n3  failed  the disk of Docker is full"
        assert engine.run("image", "ls", "--all", "--quiet") == ""
        assert not list((engine.root / "data" / "tmp").glob("docker-import-*"))
    assert rack.distribute(IMAGE, "--hosts", "n3").returncode == 0
    assert rack.digests()["n3"] == image.digest


def _many_files(count: int) -> bytes:
    """Return an archive of files with one byte each."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for number in range(count):
            member = tarfile.TarInfo(f"many/{number}")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    return data.getvalue()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_what_is_broken_off_leaves_nothing_and_can_be_repeated(
    rack: Rack, signum: signal.Signals
) -> None:
    image = rack.build("one")
    lab = rack.desk.lab
    argv = [sys.executable, "-m", "clusterkit", "images", "distribute", IMAGE, "-c", "rack"]
    env = rack.desk.environment(DOCKER_HOST=f"unix://{rack.home.socket}", TMPDIR=str(rack.folder))
    with slow_link(lab, "head", "20mbit"):
        client = lab.popen("head", argv, cwd=rack.desk.folder, env=env)
        await_true(lambda: all(lab.processes(host, "docker load") for host in lab.nodes))
        time.sleep(1)
        assert client.poll() is None
        inner = one_process(lab, "head", "clusterkit images distribute")
        os.kill(inner.pid, signum)  # nsenter passes no signals on, and ends as what it started
        client.communicate(timeout=120)
    assert client.returncode == (130 if signum == signal.SIGINT else -signum)
    await_true(lambda: not any(lab.processes(host, "docker load") for host in lab.nodes))
    assert set(rack.digests().values()) == {""}
    assert signum == signal.SIGKILL or not list(rack.folder.glob("clusterkit-image-*"))
    assert rack.distribute(IMAGE).returncode == 0
    assert set(rack.digests().values()) == {image.digest}


class SessionWith:
    """A login on this machine that finds an engine, as another user where one is given."""

    node = "here"

    def __init__(self, engine: Engine, *words: str) -> None:
        self._words = [*words, "env", f"DOCKER_HOST=unix://{engine.socket}"]

    def talk(self, script: str) -> TalkHere:
        talk = TalkHere("", Path("/tmp"))
        prefix = f"exec {' '.join(self._words)} sh -c "
        quoted = "'" + script.replace("'", "'\"'\"'") + "'\n"
        talk.send((prefix + quoted).encode())
        return talk


def test_whom_the_daemon_refuses_is_told_so(rack: Rack, tmp_path: Path) -> None:
    image = rack.build("one")
    for tool in ("env", "sh"):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    poor: Any = SessionWith(rack.home, "/usr/bin/env", f"PATH={tmp_path}")
    with pytest.raises(RemoteError, match="here: there is no docker"):
        image_nodes.look(poor, IMAGE, image)
    rack.folder.chmod(0o755)
    nobody: Any = SessionWith(
        rack.home, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"
    )
    with pytest.raises(RemoteError, match="here: no permission for the Docker daemon") as caught:
        image_nodes.look(nobody, IMAGE, image)
    assert caught.value.hint is not None
    assert "usermod -aG docker" in caught.value.hint


def test_what_is_damaged_on_the_way_is_not_taken(rack: Rack, tmp_path: Path) -> None:
    image = rack.build("one")
    with _environment(DOCKER_HOST=f"unix://{rack.home.socket}"):
        archive = save_image(IMAGE, image, tmp_path)
    pieces = list(chunks(archive, archive.without(0), 1 << 18))
    middle = len(pieces) // 2  # of the big layer
    damaged = [*pieces]
    damaged[middle] = bytes([pieces[middle][0] ^ 1]) + pieces[middle][1:]
    session: Any = SessionWith(rack.engines["n1"])
    with pytest.raises(RemoteError, match=r"invalid diffID|checksum|diff_id"):
        image_nodes.load(session, IMAGE, image, damaged)
    assert rack.digests()["n1"] == ""
    image_nodes.load(session, IMAGE, image, pieces)
    assert rack.digests()["n1"] == image.digest


def test_an_engine_that_wants_all_layers_gets_them(rack: Rack, tmp_path: Path) -> None:
    image = rack.build("one")
    with _environment(DOCKER_HOST=f"unix://{rack.home.socket}"):
        archive = save_image(IMAGE, image, tmp_path)
    session: Any = SessionWith(rack.engines["n1"])
    ranges = archive.without(1)
    with pytest.raises(image_nodes.NotTaken):
        image_nodes.load(session, IMAGE, image, chunks(archive, ranges, 1 << 18))
    # It has said that it has the lower one.
    engine = replace(image_nodes.look(session, IMAGE, image), lowest=1)
    told: list[tuple[int, int]] = []
    delivery = Delivery(
        IMAGE, image, archive, {"here": engine}, lambda _, sent, total: told.append((sent, total))
    )
    done = delivery.to(session, engine)
    assert (done.outcome, done.bytes) == (Outcome.SENT, archive.size + size_of(ranges))
    assert told[-1] == (done.bytes, done.bytes)
    assert rack.digests()["n1"] == image.digest


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def test_what_cannot_be_meant_is_refused_at_the_desk(rack: Rack) -> None:
    rack.build("one")
    no_image = rack.distribute("ck-try/nosuch:1")
    assert no_image.returncode == 2
    assert "this machine has no image ck-try/nosuch:1" in no_image.stderr
    assert "docker pull ck-try/nosuch:1" in no_image.stderr
    by_digest = rack.distribute(f"ck-try/app@sha256:{'0' * 64}")
    assert by_digest.returncode == 2
    assert "docker tag" in by_digest.stderr
    no_engine = rack.distribute(IMAGE, env={"DOCKER_HOST": "unix:///nowhere.sock"})
    assert no_engine.returncode == 2
    assert "the Docker daemon does not answer (on this machine)" in no_engine.stderr
    not_built = rack.distribute("torch:cpu")
    assert not_built.returncode == 2
    assert "no image clusterkit/torch:cpu" in not_built.stderr
    assert "hint: clusterkit images build torch:cpu" in not_built.stderr
    elsewhere = rack.distribute("torch:cpu", "--registry", "r.example:5000/ai")
    assert "no image r.example:5000/ai/clusterkit/torch:cpu" in elsewhere.stderr
    variant = rack.distribute(IMAGE, "--variant", "cpu")
    assert variant.returncode == 2
    assert f"{IMAGE} is not an image of the catalogue" in variant.stderr
    at_home = rack.desk.clusterkit("images", "distribute", IMAGE, "-c", "local")
    assert at_home.returncode == 2
    assert "local is this machine, which has the image already" in at_home.stderr
    small = rack.folder / "smalltmp"
    small.mkdir(exist_ok=True)
    with mounted(rack.desk.lab, "head", "-t", "tmpfs", "-o", "size=20m", "small", str(small)):
        no_room = rack.distribute(IMAGE, env={"TMPDIR": str(small)})
    assert no_room.returncode == 2
    assert f"40 MiB are needed in {small} to save {IMAGE}" in no_room.stderr
    assert set(rack.digests().values()) == {""}


def test_a_terminal_shows_how_far_it_is(rack: Rack) -> None:
    rack.build("one")
    command = f"{sys.executable} -m clusterkit images distribute {IMAGE} -c rack"
    done = rack.desk.lab.run(
        "head",
        ["script", "-qec", command, "/dev/null"],
        cwd=rack.desk.folder,
        env=rack.desk.environment(DOCKER_HOST=f"unix://{rack.home.socket}", TERM="xterm"),
    )
    assert done.returncode == 0, done.stdout
    # A spinner is before each step, which overwrites the last; reading made ends of lines of that.
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\u2800-\u28ff]", "", done.stdout)
    steps = [step.strip() for step in plain.splitlines()]
    asking, saving = f"asking 3 nodes what they have of {IMAGE}", f"docker save {IMAGE}"
    assert steps.index(asking) < steps.index(saving)
    assert any(
        re.fullmatch(rf"{IMAGE}  \d+%  \d+ MB of 7\d MB(, \d+ MB/s)?", step) for step in steps
    ), steps
    assert any(step.endswith("sent; the engines unpack it") for step in steps)
