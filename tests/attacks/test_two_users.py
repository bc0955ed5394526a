"""The same attacks on a victim who is not root: what is root's is trusted, as is his own.

The victim is a user without a name too. He may read and enter everything (CAP_DAC_READ_SEARCH),
because this checkout and its Python may lie where only root can go; he writes as anybody does.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterkit.core.model import ClusterKind
from tests.attacks import runs
from tests.attacks.runs import STRANGER, Trap, prepare

VICTIM = 54322
AS_VICTIM = (
    "setpriv", "--reuid", str(VICTIM), "--regid", str(VICTIM), "--clear-groups",
    "--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search",
)  # fmt: skip

pytestmark = pytest.mark.needs("root", "setpriv")


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    trap = runs.make_trap(tmp_path / "trap")
    yield trap
    trap.listener.close()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder of root in which everybody may keep runs."""
    folder = tmp_path / "runs"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def as_victim(
    trap: Trap, shared: Path, *words: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**runs.environment(trap, shared), "PYTHONDONTWRITEBYTECODE": "1"}
    del environment["PYTHONSAFEPATH"]  # jobs would inherit it
    runs.give(trap.folder, VICTIM)
    return subprocess.run(
        [*AS_VICTIM, *runs.command(*words)],
        cwd=cwd or trap.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("verb", ["status", "logs", "diagnose", "cancel", "wait", "supervise"])
def test_a_run_of_another_user_is_only_read(verb: str, shared: Path, trap: Trap) -> None:
    run = prepare(shared, trap, ClusterKind.SSH)
    runs.hold(run, trap)
    runs.give(run.path, STRANGER)
    before = runs.state_of(shared)
    done = as_victim(trap, shared, verb, str(run.path))
    assert trap.caught() == []
    assert runs.state_of(shared) == before
    assert f"belongs to user {STRANGER}" in done.stderr
    if verb in {"cancel", "wait", "supervise"}:
        assert done.returncode == 2, done.stderr


@pytest.mark.parametrize(("owner", "trusted"), [(STRANGER, False), (VICTIM, True), (0, True)])
def test_a_configuration_above_counts_by_its_owner(
    owner: int, trusted: bool, shared: Path, trap: Trap
) -> None:
    planted = shared / "clusterkit.yaml"
    planted.write_text("clusters: {planted: {kind: local}}\n")
    runs.give(planted, owner)
    below = shared / "mine"
    below.mkdir()
    runs.give(below, VICTIM)
    done = as_victim(trap, shared, "config", "show", "--json", cwd=below)
    if trusted:
        assert done.returncode == 0, done.stderr
        assert "planted" in json.dumps(json.loads(done.stdout))
    else:
        assert done.returncode == 2
        assert f"clusterkit.yaml belongs to user {STRANGER}" in done.stderr
        assert "clusterkit --config-file" in done.stderr


def test_a_job_of_the_victim_runs_and_nobody_else_reads_it(shared: Path, trap: Trap) -> None:
    (trap.folder / "train.py").write_text("import os; print('uid', os.getuid())\n")
    done = as_victim(
        trap, shared, "submit", "--cluster", "local", "--framework", "env", "--nodes", "1",
        "--preflight", "off", "--wait", "--json", "train.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = Path(json.loads(done.stdout)["run_dir"])
    assert f"uid {VICTIM}" in (run / "logs" / "node-0.log").read_text()
    for path in (run, *run.rglob("*")):
        assert path.lstat().st_uid == VICTIM, path
        assert not path.lstat().st_mode & 0o077 or path.is_symlink(), path
