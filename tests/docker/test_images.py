"""The cpu variants of the images, built by `clusterkit images build`; two ranks train in each."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.data import data_dir
from clusterkit.core.distribution import DISTRIBUTION
from clusterkit.images.catalogue import IMAGES, MATRIX
from tests.docker.fixtures import BUILT, MARK, Images

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

TRAINING = BUILT[1:]


def in_image(images: Images, name: str, *words: str) -> str:
    """Run a command in an image that is built; return its output."""
    tag = images.build(name)["tag"]
    return images.engine.run("run", "--rm", "--network=none", tag, *words).strip()


def inspected(images: Images, name: str) -> dict[str, Any]:
    (found,) = json.loads(images.engine.run("image", "inspect", images.build(name)["tag"]))
    return dict(found)


@pytest.mark.parametrize("name", TRAINING)
def test_two_ranks_train_and_agree(images: Images, name: str) -> None:
    images.build(name)
    (health,) = json.loads(images.clusterkit("test", name, "--variant", "cpu", "--json"))["images"]
    assert health["healthy"]
    line = re.search(r"health: .* 2 ranks, .*: loss ([\d.]+) -> ([\d.]+)", health["output"])
    assert line
    assert float(line[2]) < 0.8 * float(line[1])


def test_the_worker_runs_in_the_base_image(images: Images) -> None:
    images.build("base")
    (health,) = json.loads(images.clusterkit("test", "base:cpu", "--json"))["images"]
    assert health["healthy"]
    assert "health: clusterkit " in health["output"]


@pytest.mark.parametrize("name", BUILT)
def test_a_user_without_rights_below_tini(images: Images, name: str) -> None:
    config = inspected(images, name)["Config"]
    assert config["User"] == "1000"
    assert config["Entrypoint"][0] == "/usr/bin/tini"
    said = in_image(images, name, "sh", "-c", "id -un; cat /proc/1/comm; touch /opt/venv/x; true")
    assert said.splitlines() == ["train", "tini"]


@pytest.mark.parametrize("name", BUILT)
def test_labels_say_the_versions_that_are_inside(images: Images, name: str) -> None:
    labels = inspected(images, name)["Config"]["Labels"]
    inside = json.loads(images.clusterkit("show", f"{name}:cpu", "--json"))["inside"]
    said = {
        label.removeprefix("io.clusterkit.version."): version
        for label, version in labels.items()
        if label.startswith("io.clusterkit.version.")
    }
    there = {**inside["python_packages"], "python": inside["python"]}
    there["clusterkit"] = there.pop(DISTRIBUTION)
    assert {"clusterkit", "python"} <= said.keys()
    wrong = {
        package: (version, there.get(package))
        for package, version in said.items()
        if not (there.get(package) or "").startswith(version)
    }
    assert not wrong
    assert labels["org.opencontainers.image.title"] == f"clusterkit {name} (cpu)"


@pytest.mark.parametrize("name", BUILT)
def test_all_python_packages_fit_each_other(images: Images, name: str) -> None:
    assert "No broken requirements" in in_image(images, name, "pip", "check")


def test_nothing_that_a_build_is_lent_stays(images: Images) -> None:
    for name in TRAINING:  # and so of base, which all of them hold
        tag = images.build(name)["tag"]
        said = images.engine.run("history", "--no-trunc", tag) + json.dumps(inspected(images, name))
        assert MARK not in said
    assert not in_layers(images, [images.build(name)["tag"] for name in TRAINING], MARK.encode())


def in_layers(images: Images, tags: list[str], word: bytes) -> bool:
    """Tell whether a word stands anywhere in the images, as they are saved: uncompressed."""
    found = False
    env = images.engine.environment
    with subprocess.Popen(["docker", "save", *tags], stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout
        tail = b""
        read = 0
        while block := process.stdout.read(1 << 22):
            read += len(block)
            whole = tail + block
            found = found or word in whole
            tail = block[-100:]
    assert process.returncode == 0
    assert read > 1 << 29
    return found


def test_no_host_key_and_no_compiler(images: Images) -> None:
    looked = "ls /etc/ssh/ssh_host_* /usr/bin/g++ /usr/bin/cmake 2>/dev/null | wc -l"
    for name in BUILT:
        assert in_image(images, name, "sh", "-c", looked) == "0"


def test_building_again_builds_nothing(images: Images) -> None:
    first = images.rebuild("torch")
    again = images.rebuild("torch")
    assert again["recipe"] == first["recipe"], "clusterkit was edited meanwhile"
    assert again["digest"] == first["digest"]
    assert again["cached_steps"] == again["steps"]


def test_another_deepspeed_makes_one_new_layer(images: Images, tmp_path: Path) -> None:
    """All of the image but the layer with DeepSpeed itself is the stage `common` and two files."""
    images.build("deepspeed")
    images.clusterkit("build", "deepspeed", *images.flags(), "--output", str(tmp_path))
    lock = tmp_path / "deepspeed-cpu" / "requirements.txt"
    version = MATRIX["deepspeed"]
    text = lock.read_text()
    assert f"deepspeed=={version}" in text
    lock.write_text(text.replace(f"deepspeed=={version}", "deepspeed==0.0.1"))
    script = (tmp_path / "build.sh").read_text()
    (line,) = (line for line in script.splitlines() if line.endswith("deepspeed-cpu"))
    line = re.sub(r"--tag=\S+", "--target=common", line)
    done = subprocess.run(
        ["sh", "-c", line],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**images.engine.environment, "DOCKER_BUILDKIT": "1"},
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    ran = re.findall(r"(?m)^#(\d+) \[(common) [^\n]*\] (?:RUN|COPY)", said)
    assert ran
    cached = set(re.findall(r"(?m)^#(\d+) CACHED", said))
    assert {number for number, _ in ran} <= cached
    layers = inspected(images, "deepspeed")["RootFS"]["Layers"]
    below = inspected(images, "torch")["RootFS"]["Layers"]
    assert layers[: len(below)] == below
    assert len(layers) - len(below) == 4  # Debian packages, Python packages, test, DeepSpeed


def test_every_image_has_what_its_folder_promises() -> None:
    for name in IMAGES:
        folder = data_dir("images") / name
        assert (folder / "README.md").is_file()
        assert (folder / "test" / "health").stat().st_mode & 0o100
