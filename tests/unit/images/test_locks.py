"""The locks hold what pyproject.toml asks for, by hash, one version of each, and make uses them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

from clusterkit.core.distribution import is_ours, normal_name
from tests.helpers.paths import ROOT

LOCKS = sorted((*ROOT.glob("locks/*.txt"), *(ROOT / "tests/frameworks").glob("*.txt")))
OURS = [path for path in LOCKS if path.name != "horovod-mpi.txt"]  # a wheel that is built here
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins(path: Path) -> dict[str, str]:
    """Return name -> version of what a lock installs on this machine."""
    found = {}
    for line in path.read_text().replace("\\\n", " ").splitlines():
        requirement = Requirement(line.partition(" --hash")[0])
        if requirement.marker is None or requirement.marker.evaluate(default_environment()):
            (version,) = requirement.specifier
            found[normal_name(requirement.name)] = version.version
    return found


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_every_line_is_one_version_with_hashes_and_none_is_ours(path: Path) -> None:
    lines = path.read_text().replace("\\\n", " ").splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==\S+( ; [^#]+?)?(\s+--hash=sha256:[0-9a-f]{64})+", line)
    assert [name for name in pins(path) if is_ours(name)] == []


def test_locks_hold_what_the_project_asks_for() -> None:
    group = [one for one in PROJECT["dependency-groups"]["dev"] if isinstance(one, str)]
    group += PROJECT["dependency-groups"]["docs"]
    everything = PROJECT["project"]["dependencies"]
    for wanted, lock in ((everything, "core"), (group, "dev")):
        held = pins(ROOT / f"locks/{lock}.txt")
        for requirement in map(Requirement, wanted):
            version = held[normal_name(requirement.name)]
            assert version in requirement.specifier, f"make lock: {requirement}"
    needed = (ROOT / "locks/build.txt").read_text()
    assert all(f"{name}==" in needed for name in ("pip", "hatchling", "editables"))


def test_one_environment_has_one_version_of_each() -> None:
    seen: dict[str, str] = {}
    for name in ("build", "core", "torch-cpu", "dev", "train"):
        for package, version in pins(ROOT / f"locks/{name}.txt").items():
            assert seen.setdefault(package, version) == version, f"{package} in {name}"


def test_make_installs_by_a_lock_or_from_a_file() -> None:
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    assert "LOCKED := install --no-deps --no-build-isolation --require-hashes --requirement" in text
    assert "UNCOMPILED := $(subst install,install --no-compile,$(LOCKED))" in text
    installs = re.findall(r"(?:\$\(PIP\)|-m pip)\s[^;\n]*", text)
    assert len(installs) > 8
    for command in installs:
        allowed = ("$(LOCKED)", "$(UNCOMPILED)", "install --no-index --no-deps", " uninstall ")
        begins = command.endswith(
            "-check $(QUIET)"
        )  # the definition of $(PIP), which installs nothing
        assert begins or any(words in command for words in allowed), command
