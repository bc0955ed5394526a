"""What `--sync` sends, and what a node makes of it; the node is a process of this machine."""

from __future__ import annotations

import dataclasses
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import paramiko
import pytest

from clusterkit.cli.nodes.nodes import _report
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import ClusterKind, ClusterSpec
from clusterkit.core.shell import quote_path
from clusterkit.transport.ssh.session import Session
from clusterkit.transport.sync import virtualenv
from clusterkit.transport.sync.deliver import Delivered, Place, deliver
from clusterkit.transport.sync.helper import Helper, NoPython
from clusterkit.transport.sync.ingredients import Ingredients, read_ingredients
from clusterkit.transport.sync.manifest import Manifest, manifest_of, read_manifest
from clusterkit.transport.sync.wheel import WHEEL_NAME
from tests.helpers.here import SessionHere
from tests.helpers.needs import require

ODD = ("with space", "new\nline", "quote'\"$(x)", "ünï", os.fsdecode(b"\xff\xfe"), "-rf", "a\\b")


def tree(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(manifest: Manifest) -> list[str]:
    return [entry.path for entry in manifest.entries]


def read(folder: Path, **more: Any) -> Manifest:
    return read_manifest(folder, **{"limit_mib": 10, **more})


class TestManifest:
    @pytest.mark.parametrize(
        "ignore",
        [
            {"": "*.log\n"},
            {"": "/a/\n!a/keep.py\n"},
            {"": "*.py\n!keep.py\n", "a": "keep.py\n"},
            {"": "**/c/*\n!**/c/d.log\n", "a/b": "*\n!.gitignore\n"},
            {"": "# none\n\nx\\ y\nb/\n", "a": "!b/\n"},
            {"a": "/b\n", "a/b": "!keep.py\n"},
        ],
    )
    def test_it_holds_what_git_would_not_ignore(
        self, tmp_path: Path, ignore: dict[str, str]
    ) -> None:
        require("git")
        for place in ("", "a/", "a/b/", "c/", "a/b/c/"):
            for name in ("keep.py", "t.log", "d.log", "x y"):
                path = tmp_path / place / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(name)
        for place, text in ignore.items():
            (tmp_path / place / ".gitignore").write_text(text)
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--others", "--exclude-standard"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        assert names(read(tmp_path)) == sorted(listed.stdout.split("\0")[:-1])

    def test_in_a_part_of_a_repository_what_stands_above_counts(self, tmp_path: Path) -> None:
        tree(tmp_path, **{".gitignore": "*.log\n/a/out/\n", "a__x.log": "", "a__y": ""})
        tree(tmp_path / "a" / "out", z="")
        assert names(read(tmp_path / "a")) == ["out/z", "x.log", "y"]  # above it is no repository
        (tmp_path / ".git").mkdir()
        assert names(read(tmp_path / "a")) == ["y"]

    def test_links_are_kept_and_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("not yours")
        folder = tree(tmp_path / "work", real__file="1")
        (folder / "inside").symlink_to("real")
        (folder / "outside").symlink_to("../secret")
        (folder / "absolute").symlink_to("/etc/passwd")
        os.mkfifo(folder / "pipe")
        manifest = read(folder)
        assert {e.path: e.link for e in manifest.entries} == {
            "absolute": "/etc/passwd",
            "inside": "real",
            "outside": "../secret",
            "real/file": None,
        }
        assert manifest.size == 1

    def test_too_much_is_refused_with_what_is_largest(self, tmp_path: Path) -> None:
        tree(tmp_path, **{"train.py": "x", "notes.txt": "y" * 1000})
        for name, mib in (("data/deep/er/big.bin", 3), ("out/a.pt", 1), ("out/b.pt", 1)):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as stream:
                stream.truncate(mib << 20)
        with pytest.raises(UserError) as caught:
            read(tmp_path, limit_mib=4)
        (problem,) = caught.value.problems
        assert "5.0 MiB to send, more than 4 MiB" in problem.message
        assert [line.split()[-1] for line in problem.message.splitlines()[1:3]] == [
            "data/deep/er/big.bin",
            "out",
        ]
        assert "--sync-limit 6" in str(problem.hint)
        (tmp_path / ".gitignore").write_text("data/\n")
        assert names(read(tmp_path, limit_mib=4))[-2:] == ["out/b.pt", "train.py"]

    def test_what_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="there is no folder"):
            read(tmp_path / "nothing")

    def test_the_runs_are_left_out(self, tmp_path: Path) -> None:
        folder = tree(tmp_path, runs__x__log="1", job="2")
        assert names(read(folder, leave_out=[folder / "runs"])) == ["job"]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[SessionHere]:
    session = SessionHere(tmp_path / "home")
    session.home.mkdir()
    yield session
    session.leave()


def bring(here: SessionHere, manifest: Manifest, **place: Any) -> Delivered:
    try:
        target = Place(**{"folder": "~/copy", **place})
        told: list[tuple[int, int]] = []
        sent = deliver(
            Helper(here, sys.executable), manifest, target, on_sent=lambda *n: told.append(n)
        )
        assert told[-1:] in ([], [(sent.size, sent.size)])
        steps = [after - before for (before, _), (after, _) in pairwise([(0, 0), *told])]
        assert all(0 < step <= 1 << 18 for step in steps)
        return sent
    finally:
        here.leave()


def seen(folder: Path) -> dict[str, tuple[bytes | str, int]]:
    found: dict[str, tuple[bytes | str, int]] = {}
    for above, folders, listed in os.walk(folder):
        for name in (*folders, *listed):
            path = Path(above, name)
            if path.is_symlink():
                found[str(path.relative_to(folder))] = (str(path.readlink()), 0o777)
            elif path.is_file():
                mode = stat.S_IMODE(path.stat().st_mode)
                found[str(path.relative_to(folder))] = (path.read_bytes(), mode)
    return found


class TestDelivery:
    def test_a_copy_equals_the_folder_and_only_changes_are_sent_again(
        self, here: SessionHere, tmp_path: Path
    ) -> None:
        work = tree(tmp_path / "work", **{"a.py": "1", "sub__b.py": "22", "sub__deep__c": ""})
        for name in ODD:
            (work / name).write_text(name, errors="surrogateescape")
        (work / "run.sh").write_text("#!/bin/sh\n")
        (work / "run.sh").chmod(0o755)
        (work / "link").symlink_to("sub")
        copy = here.home / "copy"
        first = bring(here, read(work))
        assert (first.files, first.folder) == (len(ODD) + 5, str(copy))
        assert seen(copy) == seen(work)
        assert bring(here, read(work)) == Delivered(files=0, size=0, folder=str(copy))
        # A changed file of the same size, a mode, a new one; a file and a folder change places.
        (work / "a.py").write_text("9")
        (work / "run.sh").chmod(0o644)
        (work / "link").unlink()
        tree(work, link__new="n")
        (work / "sub" / "deep" / "c").unlink()
        (work / "sub" / "deep").rmdir()
        (work / "sub" / "deep").write_text("now a file")
        assert bring(here, read(work)).files == 3
        assert seen(copy) == seen(work)

    def test_what_was_broken_off_or_spoilt_is_sent_again(
        self, here: SessionHere, tmp_path: Path
    ) -> None:
        work = tree(tmp_path / "work", a="aaaa", b="bbbb")
        bring(here, read(work))
        copy = here.home / "copy"
        (copy / "a").write_text("zzzz")
        (copy / "b.ck-part").write_text("half")
        (copy / "stranger").mkdir()
        assert bring(here, read(work)).files == 1
        assert seen(copy) == seen(work)
        assert not (copy / "stranger").exists()

    def test_a_snapshot_does_not_change_any_more(self, here: SessionHere, tmp_path: Path) -> None:
        work = tree(tmp_path / "work", **{"a.py": "1"})
        bring(here, read(work), snapshot="~/runs/1/work")
        (work / "a.py").write_text("2")
        bring(here, read(work), snapshot="~/runs/2/work")
        bring(here, read(work), snapshot="~/runs/1/work")
        texts = [(here.home / "runs" / k / "work" / "a.py").read_text() for k in "12"]
        assert texts == ["1", "2"]

    def test_files_that_change_under_way_are_named(self, here: SessionHere, tmp_path: Path) -> None:
        work = tree(tmp_path / "work", a="aaaa", b="bbbb", c="cccc")
        manifest = read(work)
        (work / "b").write_text("xxxx")
        with pytest.raises(RemoteError, match="'b' was changed while it was sent"):
            bring(here, manifest)
        (work / "b").write_text("x")
        with pytest.raises(UserError, match="'b' has become shorter"):
            bring(here, manifest)
        (work / "b").unlink()
        with pytest.raises(UserError, match="'b' has vanished"):
            bring(here, manifest)
        assert names(read(work)) == ["a", "c"]

    def test_single_files_come_under_their_new_names(
        self, here: SessionHere, tmp_path: Path
    ) -> None:
        tree(tmp_path, secrets="{}", plan="p")
        (tmp_path / "secrets").chmod(0o600)
        kept = here.home / "copy" / "kept"
        kept.parent.mkdir()
        kept.write_text("there before")
        manifest = manifest_of({name: tmp_path / name for name in ("secrets", "plan", "none")})
        bring(here, manifest, only=False, folders=("logs",))
        copied = seen(here.home / "copy")
        assert copied.keys() == {"secrets", "plan", "kept"}
        assert copied["secrets"][1] == 0o600
        assert (here.home / "copy" / "logs").is_dir()

    def test_a_node_without_room_says_how_much_is_needed(
        self, here: SessionHere, tmp_path: Path
    ) -> None:
        huge = tmp_path / "huge"
        with huge.open("wb") as stream:
            stream.truncate(1 << 20)
        manifest = manifest_of({"huge": huge})
        (entry,) = manifest.entries
        too_large = dataclasses.replace(
            manifest, entries=(dataclasses.replace(entry, size=1 << 60, sha256="0"),)
        )
        with pytest.raises(RemoteError, match=r"\d+ MiB are needed in .*, and \d+ MiB are free"):
            bring(here, too_large)


def test_a_folder_of_something_else_is_never_made_an_environment(here: SessionHere) -> None:
    data = here.home / "data"
    data.mkdir()
    (data / "precious").write_text("")
    wanted = Ingredients(venv="~/data", python=sys.executable, files=manifest_of({}))
    with pytest.raises(RemoteError, match="data is not a virtual environment, and not empty"):
        virtualenv._prepare(here, wanted)
    assert (data / "precious").exists()


def test_an_environment_of_ones_own_is_checked_and_left_alone(here: SessionHere) -> None:
    """Also one in a folder where nobody else could make anything, such as /opt."""
    python = here.home / "own" / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    wanted = Ingredients(venv="~/own/env", python=sys.executable, files=manifest_of({}))
    done = virtualenv._prepare(here, wanted)
    assert done.readiness is virtualenv.Readiness.UP_TO_DATE
    version = ".".join(map(str, sys.version_info[:3]))
    assert done.detail == f"Python {version}; an environment of your own, used as it is"
    assert [path.name for path in python.parent.parent.iterdir()] == ["bin"]
    more = dataclasses.replace(wanted, requirements="numpy\n")
    here.leave()  # which lets the next one look
    with pytest.raises(RemoteError, match=r"~/own/env was not made by .* installs nothing in it"):
        virtualenv._prepare(here, more)
    here.leave()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # and so without packages
    with pytest.raises(RemoteError, match="cannot import clusterkit") as refused:
        virtualenv._prepare(here, wanted)
    assert (refused.value.hint or "").startswith("install clusterkit ")


def test_no_environment_is_made_where_everybody_can_replace_it(here: SessionHere) -> None:
    shared = here.home / "shared"
    (shared / "venv").mkdir(parents=True)
    shared.chmod(0o777)
    wanted = Ingredients(venv="~/shared/venv", python=sys.executable, files=manifest_of({}))
    with pytest.raises(RemoteError, match=r"everybody can replace .*/shared/venv: nothing in it"):
        virtualenv._prepare(here, wanted)
    assert list((shared / "venv").iterdir()) == []


def test_requirements_that_name_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("numpy\n-r more.txt\n")
    cluster = ClusterSpec(name="apart", kind=ClusterKind.SSH)
    asked: dict[str, Any] = {"requirements": None, "python": None, "index": False}
    with pytest.raises(UserError, match="names a file that the nodes do not have"):
        read_ingredients(cluster, wheels=(), **{**asked, "requirements": path})
    with pytest.raises(UserError, match="no wheel: "):
        read_ingredients(cluster, wheels=(path,), **asked)
    with pytest.raises(UserError, match="--index counts with --wheels only"):
        read_ingredients(cluster, wheels=(), **{**asked, "index": True})
    (tmp_path / "numpy-1-py3-none-any.whl").write_text("")
    given = read_ingredients(cluster, wheels=(tmp_path,), **asked)
    assert names(given.files) == ["numpy-1-py3-none-any.whl", WHEEL_NAME, "lock.txt"]
    assert given.wheels
    assert not given.index
    assert given.stamp([3, 11]) != given.stamp([3, 12])


def test_what_pip_did_already_is_no_hint() -> None:
    said = "ERROR: No matching distribution found for rich"
    assert "--index" in str(virtualenv._hint(said, index=False))
    assert virtualenv._hint(said, index=True) == "give a wheel of it: --wheels DIR"


def test_that_no_index_is_reached_is_told_before_what_pip_concludes_from_it() -> None:
    said = (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)'\n"
        "ERROR: No matching distribution found for ahocorasick-rs==1.0.3\n"
    )
    helper = SimpleNamespace(node="head", ask=lambda *_, **__: {"code": 1, "said": said})
    with pytest.raises(RemoteError, match="head reaches no package index") as refused:
        virtualenv._run(cast(Helper, helper), ["pip"], index=True)
    hint = refused.value.hint or ""
    assert "docs/how-to/air-gapped.md has it): --wheels DIR\n" in hint
    assert hint.endswith("\n      venv: /path/to/env\n      python: /path/to/env/bin/python")
    with pytest.raises(RemoteError, match="No matching distribution"):
        virtualenv._run(cast(Helper, helper), ["pip"])


def test_a_python_that_is_not_there_is_told_from_one_that_fails(here: SessionHere) -> None:
    with pytest.raises(NoPython, match="~/nowhere/python cannot be run there"):
        Helper(here, "~/nowhere/python")
    with pytest.raises(RemoteError, match="false ended at once, exit code 1"):
        Helper(here, "false")


class ClosedInTime(paramiko.Channel):
    """A channel whose other side says its last word and closes as a wait for it runs out."""

    def exec_command(self, _: str) -> None:
        self.active = True

    def send(self, data: bytes) -> int:
        return len(data)

    def recv(self, count: int) -> bytes:
        if not self.closed:
            self.in_buffer.feed(b"the last word\n")
            with self.lock:
                self._set_closed()
            raise TimeoutError
        return bytes(super().recv(count))


def test_what_a_node_said_before_it_closed_is_heard_though_a_wait_ran_out() -> None:
    talk = Session("n1", SimpleNamespace(open_session=lambda **_: ClosedInTime(0)), int).talk("")
    assert talk.line() == b"the last word"
    assert talk.line() is None


def test_paths_on_nodes_are_words_of_sh() -> None:
    assert quote_path("~/a b") == "\"$HOME\"/'a b'"
    assert quote_path("/x;y") == "'/x;y'"
    assert quote_path("~root") == "'~root'"


def test_hints_of_prepared_nodes_keep_to_the_width_of_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hint = "give a folder of wheels with --wheels DIR, " * 4
    _report(
        [
            virtualenv.Prepared(
                node="n1", readiness=virtualenv.Readiness.FAILED, detail="no index", hint=hint
            )
        ]
    )
    first, *more = capsys.readouterr().out.splitlines()
    assert first.startswith("n1  failed")
    assert len(more) > 1
    assert max(map(len, more)) <= 80
