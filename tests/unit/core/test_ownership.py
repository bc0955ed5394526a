"""Whose a file is, and what only its owner may have done with it."""

from __future__ import annotations

import grp
import os
from pathlib import Path

import pytest

from clusterkit.core.errors import UserError
from clusterkit.core.ownership import find_foreign, find_foreign_in, require_own

STRANGER = 54321
as_root = pytest.mark.needs("root")


def made(path: Path, mode: int = 0o600) -> Path:
    path.write_text("x: 1\n")
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_ones_own_file_is_trusted(tmp_path: Path, mode: int) -> None:
    assert find_foreign(made(tmp_path / "own", mode)) is None


@as_root
def test_a_file_of_somebody_else_is_not(tmp_path: Path) -> None:
    path = made(tmp_path / "theirs")
    os.chown(path, STRANGER, STRANGER)
    found = find_foreign(path)
    assert found is not None
    assert found.reason == "belongs to user 54321"


def test_a_file_that_everybody_can_write_is_not(tmp_path: Path) -> None:
    path = made(tmp_path / "open", 0o666)
    with pytest.raises(UserError, match=r"can be written by everybody \(mode 0666\)") as caught:
        require_own(path, use="read it")
    assert caught.value.problems[0].hint == f"if nobody else has changed it: chmod go-w {path}"


@as_root
def test_the_right_of_a_group_counts_unless_it_is_the_owners_own(tmp_path: Path) -> None:
    path = made(tmp_path / "group", 0o664)  # root's group has nobody but root in it
    assert find_foreign(path) is None
    os.chown(path, 0, STRANGER)
    found = find_foreign(path)
    assert found is not None
    assert found.reason == "can be written by the group 54321 (mode 0664)"


@as_root
def test_a_group_of_the_owners_name_is_his_own_only_without_others_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path / "group", 0o664)
    of_root = grp.struct_group(("root", "x", 0, ["root", "alice"]))
    monkeypatch.setattr(grp, "getgrgid", lambda _: of_root)
    found = find_foreign(path)
    assert found is not None
    assert found.reason == "can be written by the group root (mode 0664)"


@as_root
def test_a_link_is_as_foreign_as_who_made_it_and_what_it_leads_to(tmp_path: Path) -> None:
    target = made(tmp_path / "target")
    link = tmp_path / "link"
    link.symlink_to(target)
    assert find_foreign(link) is None
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    assert find_foreign(link) is not None
    os.chown(link, 0, 0, follow_symlinks=False)
    os.chown(target, STRANGER, STRANGER)
    assert find_foreign(link) is not None


@as_root
def test_whoever_owns_a_sticky_folder_can_replace_what_is_in_it(tmp_path: Path) -> None:
    own = tmp_path / "sticky" / "own"
    own.mkdir(parents=True)
    own.parent.chmod(0o1777)
    assert find_foreign_in(own) is None
    os.chown(own.parent, STRANGER, STRANGER)
    found = find_foreign_in(own)
    assert found is not None
    assert str(found) == f"{own.parent} belongs to user 54321"


def test_what_is_not_there_is_nobodys(tmp_path: Path) -> None:
    require_own(tmp_path / "none", use="read it")


def test_what_cannot_be_looked_at_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot look at"):
        require_own(tmp_path / ("x" * 300), use="read it")
