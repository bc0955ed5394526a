"""The catalogue of images and what derives from it: locks, names, labels, contexts, bake file."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import runpy
import shlex
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path, PurePath

import pytest

from clusterkit import __version__
from clusterkit.core.data import data_dir
from clusterkit.core.errors import UserError
from clusterkit.images.catalogue import (
    IMAGES,
    MATRIX,
    PLATFORMS,
    ROOT_IMAGE,
    VARIANTS,
    Image,
    Variant,
    check_registry,
    find_image,
    find_variant,
    lineage,
    read_name,
)
from clusterkit.images.health import OLDEST_DRIVER
from clusterkit.images.locks import (
    SOURCE,
    lock_path,
    pip_settings,
    read_lock,
    requirements,
    versions_elsewhere,
)
from clusterkit.images.recipe import (
    BuildOptions,
    Context,
    Target,
    assemble,
    bake_document,
    build_command,
    build_script,
    make_targets,
)
from clusterkit.transport.sync.wheel import pack_wheel
from tests.helpers.paths import ROOT, TESTS

GOLDEN = TESTS / "golden" / "images"
LOCKED = [
    (image, variant)
    for image in IMAGES.values()
    for variant in (Variant.CPU, Variant.CUDA)
    if (data_dir("images") / image.name).is_dir()
]
AMD64, ARM64 = PLATFORMS


def ids(value: object) -> str:
    return value.name if isinstance(value, Image) else str(value)


@pytest.mark.parametrize(("image", "variant"), LOCKED, ids=ids)
def test_every_line_of_a_lock_has_its_hash(image: Image, variant: Variant) -> None:
    lines = lock_path(image, variant).read_text().splitlines()
    pins = [line for line in lines if "==" in line]
    hashes = [line for line in lines if re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", line)]
    assert len(pins) == len(hashes) > 0
    assert all(pin.endswith(" \\") for pin in pins)


@pytest.mark.parametrize(("image", "variant"), LOCKED, ids=ids)
def test_locks_hold_what_the_catalogue_names_and_each_thing_once(
    image: Image, variant: Variant
) -> None:
    held: dict[str, str] = {}
    for known in lineage(image):
        added = read_lock(lock_path(known, variant))
        assert not held.keys() & added.keys()
        held |= added
    for name, version in MATRIX.items():
        if name in held:
            assert held[name].partition("+")[0] == version
    for known in lineage(image):
        for line in requirements(known, variant):
            name = re.split(r"[<>=!~ \[;]", line)[0].lower().replace("_", "-")
            assert name in held, line


def test_versions_of_the_gpu_libraries_are_those_of_the_lock() -> None:
    held = read_lock(lock_path(IMAGES["torch"], Variant.CUDA))
    assert held["nvidia-nccl-cu13"] == MATRIX["nccl"]
    assert held["nvidia-cuda-runtime"].startswith(MATRIX["cuda"] + ".")


def test_locks_leave_nothing_of_the_machine_that_made_them() -> None:
    for path in data_dir("images").glob("*/lock/*.txt"):
        assert not re.search(r"https?://|file://|index|find-links|/opt/", path.read_text()), path


def test_of_pip_only_what_the_file_says_counts(tmp_path: Path) -> None:
    path = tmp_path / "pip.conf"
    path.write_text(
        "[global]\nfind-links = /a\n  /b\n[install]\nno-index = yes\n[list]\nformat = json\n"
    )
    assert pip_settings(path) == {"PIP_FIND_LINKS": "/a\n/b", "PIP_NO_INDEX": "yes"}
    assert pip_settings(None) == {}
    path.write_text("find-links = /a\n")
    for wrong in (path, tmp_path / "nosuch"):
        with pytest.raises(UserError, match="cannot be read as a pip"):
            pip_settings(wrong)


def test_versions_are_those_that_were_run_together() -> None:
    held = {**read_lock(ROOT / "locks/torch-cuda.txt"), **read_lock(ROOT / "locks/train.txt")}
    held |= read_lock(ROOT / "locks/core.txt")
    for name in ("torch", "numpy", "deepspeed", "accelerate", "transformers"):
        assert held[name] == MATRIX[name]
    for name in IMAGES:  # `deprecated` has another version for later Pythons, `torch` a CPU build
        locked = read_lock(ROOT / f"images/{name}/lock/cpu.txt")
        same = locked.keys() & held.keys() - {"torch", "setuptools", "wheel", "deprecated"}
        assert {one: locked[one] for one in same} == {one: held[one] for one in same}
    for name, package in (("ray", "ray"), ("spark", "pyspark"), ("tensorflow", "keras")):
        locked = read_lock(lock_path(IMAGES[name], Variant.CPU))
        assert locked[package] == read_lock(ROOT / f"tests/frameworks/{name}.txt")[package]
    for image in (IMAGES["horovod"], IMAGES["full"]):
        assert read_lock(lock_path(image, SOURCE)) == {"horovod": MATRIX["horovod"]}


def test_the_root_image_is_pinned_by_digest() -> None:
    assert re.fullmatch(r"debian:bookworm-slim@sha256:[0-9a-f]{64}", ROOT_IMAGE)


def test_parents_come_first() -> None:
    seen: set[str | None] = {None}
    for image in IMAGES.values():
        assert image.parent in seen
        seen.add(image.name)


@pytest.mark.parametrize(
    ("word", "hint"),
    [("tourch", "did you mean 'torch'?"), ("zzz", "known: accelerate, base, deepspeed")],
)
def test_an_unknown_image_is_refused(word: str, hint: str) -> None:
    with pytest.raises(UserError, match=re.escape(hint)):
        find_image(word)


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'cuda'"):
        find_variant("cuad")


def test_a_name_carries_its_variant() -> None:
    assert read_name("torch:cpu", None) == (IMAGES["torch"], Variant.CPU)
    assert read_name("clusterkit/torch", "rocm") == (IMAGES["torch"], Variant.ROCM)
    assert read_name("torch", None)[1] is Variant.CUDA
    assert read_name("torch:cpu", "cuda")[1] is Variant.CPU  # an environment may say cuda


@pytest.mark.parametrize("text", ["https://reg.example", "Reg.example", "reg.example/", "a b"])
def test_what_is_no_registry_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a registry"):
        check_registry(text)


def test_the_wheel_is_the_clusterkit_that_runs(tmp_path: Path) -> None:
    packed = pack_wheel()
    assert packed == pack_wheel()
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(tmp_path)
        record = f"clusterkit_launch-{__version__}.dist-info/RECORD"
        listed = archive.read(record).decode().splitlines()
        assert {line.split(",")[0] for line in listed} == set(archive.namelist())
    argv = [sys.executable, "-m", "clusterkit", "images", "show", "torch:cpu"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "DOCKER_HOST": "unix:///nosuch"}
    done = subprocess.run(
        argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "torch 2.13.0+cpu" in done.stdout, done.stderr
    (info,) = metadata.distributions(name="clusterkit-launch", path=[str(tmp_path)])
    assert info.version == __version__


def test_a_variant_without_a_lock_is_refused_with_the_command() -> None:
    with pytest.raises(UserError, match="images lock torch --variant rocm"):
        assemble(IMAGES["torch"], Variant.ROCM)


def made(options: BuildOptions, *words: str) -> tuple[Target, ...]:
    """Return targets whose contexts hold nothing but a word: golden files must not move with it."""
    fixed = Context(files={"Dockerfile": b"FROM scratch\n"}, programs=frozenset())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clusterkit.images.recipe.assemble", lambda *_: fixed)
        return make_targets([read_name(word, None) for word in words], options)


SITE = BuildOptions(
    root="debian-base:bookworm",
    registry="reg.example.org:5000/ml",
    platform="linux/amd64",
    network="host",
    arguments={"MAX_JOBS": "4"},
    no_cache=True,
    proxies=("HTTPS_PROXY",),
    secrets={"ca": Path("/etc/os-release"), "pip": Path("/etc/passwd")},
)
CASES = {
    "all-cuda": (BuildOptions(), [f"{name}:cuda" for name in IMAGES]),
    "site-horovod-cpu": (SITE, ["horovod:cpu"]),
    "two-variants": (BuildOptions(), ["torch:cpu", "torch:rocm"]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_bake_file_and_the_commands_are_as_reviewed(case: str) -> None:
    options, words = CASES[case]
    targets = made(options, *words)
    rendered = {
        "docker-bake.json": json.dumps(bake_document(targets, options), indent=2) + "\n",
        "build.sh": build_script(targets, options),
    }
    folder = GOLDEN / case
    if os.environ.get("CLUSTERKIT_GOLDEN") == "write":
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in rendered.items():
            (folder / name).write_text(text)
    assert {path.name: path.read_text() for path in folder.iterdir()} == rendered


def test_the_script_of_commands_is_clean() -> None:
    scripts = [str(path) for path in GOLDEN.glob("*/build.sh")]
    assert len(scripts) == len(CASES)
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_a_proxy_is_named_and_its_value_is_not() -> None:
    (base,) = made(SITE, "base:cpu")
    words = build_command(base, SITE, Path("/x"))
    assert "--build-arg=HTTPS_PROXY" in words
    assert "--secret=id=pip,src=/etc/passwd" in words
    assert words[-1] == "/x/base-cpu"


def test_only_the_named_images_are_built_anew() -> None:
    assert [target.no_cache for target in made(SITE, "torch:cpu")] == [False, True]


def test_the_recipe_follows_everything_below() -> None:
    plain, other = (
        made(BuildOptions(), "torch:cpu"),
        made(BuildOptions(root="other:1"), "torch:cpu"),
    )
    assert [target.name for target in plain] == ["base:cpu", "torch:cpu"]
    assert all(a.recipe != b.recipe for a, b in zip(plain, other, strict=True))
    assert plain[1].arguments["PARENT"] == plain[0].tags[0] == "clusterkit/base:cpu"
    assert plain[1].tags[2] == f"clusterkit/torch:cpu-{plain[1].recipe[:12]}"


def test_labels_name_versions_and_the_root() -> None:
    *_, target = made(BuildOptions(), "deepspeed:cuda")
    labels = target.labels
    assert labels["io.clusterkit.version.torch"] == "2.13.0"
    assert labels["io.clusterkit.version.nccl"] == MATRIX["nccl"]
    assert labels["org.opencontainers.image.version"] == MATRIX["deepspeed"]
    assert labels["org.opencontainers.image.base.digest"] == ROOT_IMAGE.partition("@")[2]
    assert labels["org.opencontainers.image.created"] == "2026-11-22T00:00:00Z"


def test_a_platform_without_hashes_is_refused() -> None:
    with pytest.raises(UserError, match="no lock file holds hashes for linux/riscv64"):
        made(BuildOptions(platform="linux/riscv64"), "base:cpu")
    with pytest.raises(UserError, match="images lock torch --variant cpu --platform linux/arm64"):
        make_targets([(IMAGES["torch"], Variant.CPU)], BuildOptions(platform=ARM64))


def test_another_platform_has_the_same_versions_by_other_hashes() -> None:
    paths = sorted(data_dir("images").glob("*/lock/*-arm64.txt"))
    assert paths
    for path in paths:
        first = path.with_name(path.name.replace("-arm64", ""))
        assert read_lock(path) == read_lock(first), path
        assert "aarch64" in path.read_text().splitlines()[1]


def test_a_lock_of_another_platform_asks_for_versions_without_the_name_of_a_build() -> None:
    found = versions_elsewhere(IMAGES["torch"], Variant.CPU, ARM64)
    assert found["torch"] == MATRIX["torch"]
    assert read_lock(lock_path(IMAGES["torch"], Variant.CPU, AMD64))["torch"].endswith("+cpu")
    assert versions_elsewhere(IMAGES["torch"], Variant.CPU, AMD64) == {}
    assert versions_elsewhere(IMAGES["torch"], Variant.ROCM, ARM64) == {}


def test_on_arm64_images_are_built_as_those_for_cpus_here_but_for_what_is_locked() -> None:
    options = BuildOptions(platform=ARM64)
    targets = make_targets([(image, Variant.CUDA) for image in IMAGES.values()], options)
    assert [target.image for target in targets] == [*IMAGES.values()]
    for target in targets:
        lock = lock_path(target.image, Variant.CUDA, ARM64)
        assert lock.name == "cuda-arm64.txt"
        tried = assemble(target.image, Variant.CPU, AMD64)
        assert target.context.files == {**tried.files, "requirements.txt": lock.read_bytes()}
        planned = bake_document(targets, options)["target"][target.folder]
        assert (planned["platforms"], planned["args"]["VARIANT"]) == ([ARM64], "cuda")


@pytest.mark.parametrize(
    ("machine", "wanted"),
    [("x86_64", "cpu"), ("AMD64", "cpu"), ("aarch64", "cpu-arm64"), ("arm64", "cpu-arm64")],
)
def test_locks_are_those_of_this_machine(
    machine: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert lock_path(IMAGES["base"], "cpu").stem == wanted


def test_a_secret_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="build secret 'ca'"):
        made(BuildOptions(secrets={"ca": tmp_path / "nosuch.pem"}), "base:cpu")


def test_words_of_the_script_are_those_of_the_commands() -> None:
    targets = made(SITE, "base:cpu")
    line = build_script(targets, SITE).splitlines()[-1]
    assert tuple(shlex.split(line)) == build_command(targets[0], SITE, Path())


def table() -> str:
    """Return the table of docs/images.md."""
    rows = [
        "| image | built on | version | what for | variants with a lock | on arm64 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for image in IMAGES.values():
        locked, arm64 = (
            ", ".join(v for v in VARIANTS if lock_path(image, v, on).exists()) for on in PLATFORMS
        )
        below = image.parent or "Debian 12"
        version = image.version
        rows.append(
            f"| `{image.name}` | {below} | {version} | {image.summary} | {locked} | {arm64} |"
        )
    return "\n".join(rows)


def matrix() -> str:
    """Return the table of versions of docs/images.md."""
    return "\n".join(f"| {name} | {version} |" for name, version in MATRIX.items())


@pytest.mark.parametrize("made_table", [table, matrix])
def test_the_tables_of_the_page_are_the_catalogue(made_table: object) -> None:
    page = (ROOT / "docs" / "images.md").read_text()
    assert made_table() in page, made_table()  # type: ignore[operator]


@pytest.mark.parametrize("image", IMAGES.values(), ids=ids)
def test_a_build_sees_every_file_that_its_dockerfile_takes(image: Image) -> None:
    held = assemble(image, Variant.CUDA).files
    text = held["Dockerfile"].decode().replace("\\\n", " ")
    lent = [words for words in re.findall(r"--mount=(type=bind\S*)", text) if "from=" not in words]
    taken = [re.findall(r"source=([^,\s]+)", words)[0] for words in lent]
    for words in re.findall(r"(?m)^COPY (.*)$", text):
        if "--from=" not in words:
            taken += words.split()[:-1]
    assert taken
    for name in taken:
        found = [known for known in held if PurePath(known).match(name.rstrip("/"))]
        assert found or any(known.startswith(name) for known in held), name


def test_the_look_into_an_image_knows_the_same_drivers() -> None:
    """It runs in the image, by itself, and so has a copy of the table."""
    look = runpy.run_path(str(data_dir("templates/scripts/container") / "look.py"))
    assert {int(cuda): branch for cuda, branch in look["OLDEST_DRIVER"].items()} == {
        **OLDEST_DRIVER
    }
