"""Archives as `docker save` writes them, and what of them is sent to an engine with some layers."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from clusterkit.core.errors import RemoteError
from clusterkit.images.archive import (
    Archive,
    ImageFacts,
    chunks,
    read_archive,
    read_image,
    read_layers,
    size_of,
)

_LINE = "sha256:ab 2026-11-22T03:14:00.7Z amd64 173313067 sha256:1,sha256:2,"


def archive(folder: Path, files: dict[str, bytes | str], layers: list[str]) -> Path:
    """Write a tar file; text is where a link points to."""
    path = folder / "image.tar"
    manifest = json.dumps([{"Config": "c.json", "RepoTags": ["x:1"], "Layers": layers}]).encode()
    with tarfile.open(path, "w") as tar:
        for name, content in {**files, "manifest.json": manifest}.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


def sent(found: Archive, lowest: int, folder: Path) -> dict[str, bytes | None]:
    """Return the files that an engine finds in what it is sent."""
    ranges = found.without(lowest)
    path = folder / "sent.tar"
    path.write_bytes(b"".join(chunks(found, ranges, 1000)))
    assert path.stat().st_size == size_of(ranges)
    with tarfile.open(path) as tar:
        return {
            member.name: data.read() if (data := tar.extractfile(member)) else None
            for member in tar
            if member.isreg()
        }


@pytest.mark.parametrize("names", [["a/layer.tar", "b/layer.tar"], ["blobs/sha256/1", "blobs/2"]])
def test_layers_that_are_there_are_left_out(tmp_path: Path, names: list[str]) -> None:
    one, two = b"1" * 5000, b"2" * 700
    found = read_archive(archive(tmp_path, {names[0]: one, "c.json": b"{}", names[1]: two}, names))
    assert sent(found, 0, tmp_path).keys() == {*names, "c.json", "manifest.json"}
    assert sent(found, 1, tmp_path).keys() == {names[1], "c.json", "manifest.json"}
    assert sent(found, 1, tmp_path)[names[1]] == two
    assert sent(found, 2, tmp_path).keys() == {"c.json", "manifest.json"}


def test_a_layer_that_a_higher_one_is_equal_to_is_sent_with_that(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        "a/layer.tar": b"1" * 5000,
        "b/layer.tar": b"2" * 700,
        "c/layer.tar": "../a/layer.tar",
    }
    found = read_archive(archive(tmp_path, files, list(files)))
    assert sent(found, 2, tmp_path).keys() == {"a/layer.tar", "manifest.json"}
    assert sent(found, 3, tmp_path).keys() == {"manifest.json"}
    # Later releases name the same file twice.
    blobs: dict[str, bytes | str] = {"blobs/1": b"1" * 5000, "blobs/2": b"2"}
    found = read_archive(archive(tmp_path, blobs, ["blobs/1", "blobs/2", "blobs/1"]))
    assert sent(found, 2, tmp_path).keys() == {"blobs/1", "manifest.json"}


def test_long_names_stay_whole(tmp_path: Path) -> None:
    name = f"{'deep/' * 40}layer.tar"
    found = read_archive(
        archive(tmp_path, {name: b"1", "z/layer.tar": b"2"}, [name, "z/layer.tar"])
    )
    assert sent(found, 0, tmp_path).keys() == {name, "z/layer.tar", "manifest.json"}
    assert sent(found, 1, tmp_path).keys() == {"z/layer.tar", "manifest.json"}


@pytest.mark.parametrize("damage", ["empty", "no layer", "no tar"])
def test_what_is_no_saved_image_is_refused(tmp_path: Path, damage: str) -> None:
    path = archive(tmp_path, {}, ["nosuch/layer.tar"] if damage == "no layer" else [])
    if damage == "no tar":
        path.write_bytes(b"hello" * 300)
    elif damage == "empty":
        path.write_bytes(b"")
    with pytest.raises(RemoteError, match="something else than an image"):
        read_archive(path)


def test_builds_are_told_apart_whatever_an_engine_calls_them() -> None:
    image = read_image(_LINE)
    assert image == ImageFacts(
        digest="sha256:ab",
        created="2026-11-22T03:14:00.7Z",
        architecture="amd64",
        size=173313067,
        layers=("sha256:1", "sha256:2"),
    )
    assert image.is_same(read_image(_LINE))
    assert image.is_same(read_image(_LINE.replace("sha256:ab", "sha256:containerd")))
    later = _LINE.replace("ab", "cd").replace("03:14", "03:15")
    assert not image.is_same(read_image(later))
    assert not image.is_same(read_image(_LINE.replace("ab", "cd").replace("sha256:2", "sha256:3")))
    empty = read_image("sha256:ab  amd64 0 ")
    assert empty.layers == read_layers("") == ()
    assert not empty.is_same(read_image("sha256:cd  amd64 0 "))


@pytest.mark.parametrize("line", ["", "[]", "sha256:ab 2026-11-22 03:14:00 +0000 UTC amd64 1 x,"])
def test_other_words_are_no_image(line: str) -> None:
    with pytest.raises(ValueError, match="values to unpack"):
        read_image(line)
