"""From what a job was started: the commit, what was not committed, the packages, and the driver.

It stands as `provenance.json` in the run folder, with NCCL's wheel among the packages: those of the
Python that the job runs, where that is known here, or of this one. The driver is that of this
machine; that of each node is in its result.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterkit.config.sources import expand_home
from clusterkit.core import files
from clusterkit.core.commands import run_command
from clusterkit.core.model import LaunchPlan
from clusterkit.core.records import text_of, texts_of
from clusterkit.core.text import some_of
from clusterkit.core.version import __version__
from clusterkit.executors.node.driver import gpu_driver
from clusterkit.executors.run.runfolder import RunFolder

FILE = "provenance.json"
SENT = ".laptop"
"""In the folder of runs on a login node: what laptops sent, a folder for each that they sent from.
In that, beside each copy and under its name with `.json`, what was told of its code."""
CODE = "code"
"""The folder of the code in a run folder, where it is no working tree that changes."""
OF_ONE_JOB = "of_one_job"
"""In what was told of a copy: it was sent for one job, which takes it into its run folder."""
_OF_CODE = ("commit", "diff", "diff_cut")
_MOST_DIFF = 1 << 20
"""Characters of what is not committed."""
_TIMEOUT_S = 5.0
_ITS_PATH = "import sys; print('.'.join(map(str, sys.version_info[:3])), *sys.path, sep='\\n')"
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+){2}")
_DIST_INFO = re.compile(r"(?P<name>[A-Za-z0-9._]+)-(?P<version>[^-]+)\.(?:dist|egg)-info")
_SHOWN = 5
# A folder's own settings may have git start programs: what shows a diff, what watches files.
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "diff.relative=false")
# Nor may they, or the user's, say how a diff looks: `git apply` is to take it.
_DIFF = (
    *("-c", f"core.bigFileThreshold={_MOST_DIFF}"),  # what is larger is told by name, as binary
    *("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--unified=3", "--submodule=short"),
    *("--src-prefix=a/", "--dst-prefix=b/", "HEAD", "--"),
)


def job_python(plan: LaunchPlan) -> str | None:
    """Return the Python of a job, where that is known here: the nodes see it too, and in no image.

    Setup lines may put another one on PATH, but change nothing of a path.
    """
    cluster = plan.cluster
    python = cluster.python or "python3"
    apart = cluster.kind.lists_hosts and not cluster.shared_filesystem
    varies = "/" not in python and bool(cluster.modules or cluster.setup)
    return None if plan.container or apart or varies else shutil.which(str(expand_home(python)))


def provenance_of(folder: Path, python: str | None = None) -> dict[str, Any]:
    """Return from what a job in `folder` is started: that runs `python`, or this one.

    `driver` is there where this machine has one of GPUs, `commit` and `diff` where git tells them.
    """
    document: dict[str, Any] = {
        "folder": str(folder),
        "clusterkit": __version__,
        **_of_python(python),
    }
    if (driver := gpu_driver()) is not None:
        document["driver"] = driver
    copy, told = _copy_around(folder)
    if copy is not None:
        return document | {key: told[key] for key in _OF_CODE if key in told}
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return document
    # After the commit, what of the working tree differs from it; binary files by name alone.
    document["commit"] = commit.strip()
    if (diff := _git(folder, *_DIFF)) is None:
        return document
    cut = {"diff_cut": True} if len(diff) > _MOST_DIFF else {}
    return {**document, "diff": diff[:_MOST_DIFF], **cut}


def of_code(folder: Path) -> dict[str, Any]:
    """Return the part that belongs to the code in `folder`: `commit` and `diff`."""
    document = provenance_of(folder)
    return {key: document[key] for key in _OF_CODE if key in document}


def copy_for_one_job(folder: Path) -> Path | None:
    """Return the copy that `folder` is in, where a laptop has sent that for the job at hand."""
    copy, told = _copy_around(folder)
    return copy if copy is not None and told.get(OF_ONE_JOB) is True else None


def is_snapshot(folder: Path) -> bool:
    """Tell whether `folder` is the one of the code in a run folder."""
    return folder.name == CODE and RunFolder(folder.parent).plan.exists()


def beside(copy: Path) -> Path:
    """Return what a laptop told of the code in a copy that it sent."""
    return copy.with_name(f"{copy.name}.json")


def _copy_around(folder: Path) -> tuple[Path | None, Mapping[str, Any]]:
    """Return the copy or the snapshot that `folder` is in, if any, and what was noted of it."""
    for path in (folder, *folder.parents):
        if path.parent.parent.name == SENT:
            return path, files.read_json(beside(path), own=True) or {}
        if is_snapshot(path):
            return path, files.read_json(path.parent / FILE, own=True) or {}
    return None, {}


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return in lines what has changed from one provenance to another."""
    lines = []
    before, after = text_of(then, "commit"), text_of(now, "commit")
    diffs = [text_of(one, "diff") for one in (then, now)]
    if before != after:
        lines.append(f"code: {_short(before)} then, {_short(after)} now")
    elif before and None in diffs:
        lines.append(f"code: {_short(before)}; git does not tell what is not committed")
    elif diffs[0] != diffs[1]:
        lines.append(f"code: {_short(before)} with other changes that are not committed")
    for key in ("python", "driver"):
        versions = [text_of(one, key) for one in (then, now)]
        if None not in versions and versions[0] != versions[1]:
            lines += [f"{key}: {versions[0]} then, {versions[1]} now"]
    old, new = (dict(_pairs(one)) for one in (then, now))
    other = [
        f"{name} {old.get(name, 'missing')} -> {new.get(name, 'missing')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    return [*lines, *([f"packages: {some_of(other, _SHOWN)}"] if other else ())]


def _short(commit: str | None) -> str:
    return commit[:12] if commit else "no commit"


def _pairs(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = (text.partition("==") for text in texts_of(document, "packages"))
    return [(name, version) for name, _, version in found]


def _of_python(python: str | None) -> dict[str, Any]:
    """Return the version, the packages and the path of a Python; of this one where it tells none.

    Another is started for its path alone, some 20 ms.
    """
    version, path = ".".join(map(str, sys.version_info[:3])), sys.path
    if python is None or python == sys.executable:
        return {"python": version, "packages": _packages(path), "packages_of": sys.executable}
    answer = run_command([python, "-c", _ITS_PATH], timeout_s=_TIMEOUT_S)
    version, *path = answer.output.splitlines() if answer.ok else ("",)
    if not _VERSION.fullmatch(version):
        return _of_python(None)
    return {"python": version, "packages": _packages(path), "packages_of": python}


def _packages(places: Sequence[str]) -> list[str]:
    """Return `NAME==VERSION` of what can be imported from there, as its folders are called."""
    found: dict[str, str] = {}
    for place in filter(None, places):
        try:
            names = [path.name for path in Path(place).iterdir()]
        except OSError:  # a zip file, or a folder that is missing
            continue
        for match in filter(None, map(_DIST_INFO.fullmatch, names)):
            found.setdefault(match["name"].lower().replace("_", "-"), match["version"])
    return [f"{name}=={found[name]}" for name in sorted(found)]


def _git(folder: Path, *words: str) -> str | None:
    environment = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    answer = run_command(
        [*_GIT, *words], environment=environment, folder=str(folder), timeout_s=_TIMEOUT_S
    )
    return None if answer.code else answer.output
