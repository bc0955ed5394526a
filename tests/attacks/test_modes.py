"""What is written of a job can be changed by nobody else, and read by them only where asked for."""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from clusterkit.core import files, permissions
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterKind, ClusterSpec, ShareRuns
from clusterkit.executors.run import runfolder
from clusterkit.executors.ssh.inbox import Inbox, NotWritten
from clusterkit.executors.submitit_job import dump_private, load_own
from tests.helpers.command_line import typed_in

STRANGER = 54321
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
as_root = pytest.mark.needs("root")


def submit(folder: Path, *, umask: int, share: str = "none", script: str) -> Path:
    """Run a job of two nodes on this machine to its end; return its run folder."""
    (folder / "train.py").write_text(script)
    (folder / "clusterkit.yaml").write_text(
        f"clusters: {{local: {{run_dir: {folder}/new/runs, share_runs: {share}}}}}\n"
    )
    words = ("--framework", "env", "--nodes", "2", "--preflight", "off", "--wait", "train.py")
    before = os.umask(umask)
    try:
        done = typed_in(folder, "submit", "--cluster", "local", *words, PATH=PATH, HOME=str(folder))
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "new" / "runs").iterdir()
    return run


def everything(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the relative names of all that is in a folder, itself included, and permissions."""
    for path in (folder, *sorted(folder.rglob("*"))):
        if not path.is_symlink():
            yield str(path.relative_to(folder)), stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077, 0o777])
def test_a_run_is_its_owners_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    run = submit(tmp_path, umask=umask, script="print('trained')")
    open_to_others = {name: oct(mode) for name, mode in everything(run) if mode & 0o077}
    assert open_to_others == {}
    owners = {name: oct(mode) for name, mode in everything(run) if mode & 0o600 != 0o600}
    assert owners == {}
    for above in (run.parent, run.parent.parent):
        assert stat.S_IMODE(above.stat().st_mode) == 0o700
    assert "trained" in (run / "logs" / "node-1.log").read_text()


def test_the_training_itself_keeps_the_users_umask(tmp_path: Path) -> None:
    submit(tmp_path, umask=0o027, script="open('checkpoint', 'w')")
    assert stat.S_IMODE((tmp_path / "checkpoint").stat().st_mode) == 0o640


@as_root
@pytest.mark.parametrize(("share", "gid"), [("group", 0), ("all", STRANGER)])
def test_a_shared_run_shows_its_logs_and_states_and_nothing_else(
    tmp_path: Path, share: str, gid: int
) -> None:
    run = submit(tmp_path, umask=0o000, share=share, script="print('trained')")
    seen = set(everything_readable(run, gid=gid))
    assert "logs/node-0.log" in seen
    assert {"submission.json", "ended.json"} <= seen
    hidden = {"plan.json", "node.sh", "token", "secrets.env", "shell.json", "ssh.json"}
    assert not hidden & seen
    assert not [name for name in seen if name.startswith(("submitit/", "results/"))]
    assert not [name for name, mode in everything(run) if mode & 0o022]


def everything_readable(folder: Path, *, gid: int) -> Iterator[str]:
    """Yield the names of the files that a stranger of this group can open."""
    script = (
        "import os, sys\n"
        "for here, _, names in os.walk('.'):\n"
        "    for name in names:\n"
        "        path = os.path.relpath(os.path.join(here, name))\n"
        "        try: open(path).close()\n"
        "        except OSError: continue\n"
        "        print(path)\n"
    )
    for above in (folder, *folder.parents):
        if str(above).startswith("/tmp/pytest") and not above.stat().st_mode & 0o001:
            if above in {folder, folder.parent, folder.parent.parent}:
                continue  # these are ours to judge
            above.chmod(above.stat().st_mode | 0o011)
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-c", script], cwd=folder, user=STRANGER, group=gid,
        extra_groups=[], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    yield from done.stdout.split()


def prepared(tmp_path: Path) -> runfolder.RunFolder:
    """Return a run folder as `submit` leaves it for the worker."""
    cluster = ClusterSpec(name="c", kind=ClusterKind.SLURM, run_dir=str(tmp_path / "runs"))
    run = runfolder.create(cluster, "toy")
    files.write_text(run.script, f"touch {tmp_path}/trained\n", mode=files.PRIVATE_PROGRAM)
    dump_private("task", run.submitit / "7_submitted.pkl")
    return run


def work(run: runfolder.RunFolder) -> subprocess.CompletedProcess[str]:
    """Run the worker of the only node."""
    about = {
        "CK_JOB_ID": "7", "CK_NODES": "here", "CK_SLOTS": "1", "CK_NODE_RANK": "0",
        "CK_RESTART_COUNT": "0",
        "CK_HEAD_ADDR": "127.0.0.1", "CK_PORT": "20000", "CK_TOKEN": "t" * 64,
        "SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_JOB_ID": "7",
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-P", "-m", "clusterkit.executors.node", str(run.path)],
        env={**os.environ, **about}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


class Evil:
    """What runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@as_root
@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("submitit/7_submitted.pkl", "owner"),
        ("submitit/7_submitted.pkl", "mode"),
        ("submitit", "mode"),
        ("node.sh", "owner"),
        ("node.sh", "mode"),
        ("secrets.env", "owner"),
        ("submission.json", "owner"),
        (".", "owner"),
        (".", "mode"),
    ],
)
def test_a_worker_runs_nothing_that_others_can_write(tmp_path: Path, what: str, how: str) -> None:
    run = prepared(tmp_path)
    pickled = run.submitit / "7_submitted.pkl"
    pickled.write_bytes(pickle.dumps(Evil(f"touch {tmp_path}/evil")))
    path = run.path / what
    if not path.exists():
        path.write_text("{}")
    if how == "owner":
        os.chown(path, STRANGER, STRANGER)
    else:
        os.chown(path, 0, STRANGER)
        path.chmod(0o775)
    done = work(run)
    assert done.returncode == 2
    name = path.name if what == "." else what
    why = "belongs to user 54321" if how == "owner" else "can be written by the group 54321"
    assert f"{name} {why}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "trained").exists()


def test_a_worker_unpickles_nothing_at_all(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    pickled = run.submitit / "7_submitted.pkl"
    pickled.write_bytes(pickle.dumps(Evil(f"touch {tmp_path}/evil")))
    done = work(run)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trained").exists()
    assert not (tmp_path / "evil").exists()
    outcome, result = load_own(run.submitit / "7_0_result.pkl")
    assert (outcome, result.exit_code) == ("success", 0)


@as_root
def test_a_run_folder_that_can_be_exchanged_runs_the_script_that_was_judged(
    tmp_path: Path,
) -> None:
    run = prepared(tmp_path)
    run.path.parent.chmod(0o777)
    files.write_text(run.script, f'echo "$0" >{tmp_path}/name\n')
    done = work(run)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "name").read_text().startswith("/dev/fd/")


@as_root
@pytest.mark.parametrize("how", ["owner", "mode", "folder", "link"])
def test_results_of_functions_are_not_unpickled_where_others_can_write(
    tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir(mode=0o700)
    path = folder / "1_0_result.pkl"
    path.write_bytes(pickle.dumps(Evil(f"touch {tmp_path}/evil")))
    path.chmod(0o600)
    if how == "owner":
        os.chown(path, STRANGER, STRANGER)
    elif how == "mode":
        path.chmod(0o666)
    elif how == "folder":
        folder.chmod(0o777)
    else:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(UserError, match="will not unpickle it"):
        load_own(path)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("share", list(ShareRuns))
@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_a_file_is_for_whom_its_folder_is(tmp_path: Path, share: ShareRuns, umask: int) -> None:
    before = os.umask(umask)
    try:
        cluster = ClusterSpec(
            name="c", kind=ClusterKind.LOCAL, run_dir=str(tmp_path / "runs"), share_runs=share
        )
        run = runfolder.create(cluster, "toy")
        files.create_text(run.cancelled, "")
        os.close(files.open_for_append(run.log(0)))
        files.write_json(run.state, {})
        files.write_text(run.script, "true\n", mode=files.PRIVATE_PROGRAM)
    finally:
        os.umask(before)
    shown = {ShareRuns.NONE: 0o600, ShareRuns.GROUP: 0o640, ShareRuns.ALL: 0o644}[share]
    found = {stat.S_IMODE(p.stat().st_mode) for p in (run.cancelled, run.log(0), run.state)}
    assert found == {shown}
    assert stat.S_IMODE(run.script.stat().st_mode) == 0o700
    assert stat.S_IMODE(run.submitit.stat().st_mode) == 0o700


def test_who_can_write_a_folder_can_write_none_of_its_files(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    files.create_text(tmp_path / "log", "")
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o644


def test_a_page_that_was_asked_for_obeys_the_umask_but_is_never_writable(tmp_path: Path) -> None:
    found = {}
    for umask in (0o000, 0o022, 0o077):
        before = os.umask(umask)
        try:
            files.write_text(tmp_path / "page", "", mode=files.output())
        finally:
            os.umask(before)
        found[umask] = stat.S_IMODE((tmp_path / "page").stat().st_mode)
    assert found == {0o000: 0o644, 0o022: 0o644, 0o077: 0o600}


def test_a_log_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "authorized_keys"
    precious.write_text("mine\n")
    (tmp_path / "node-0.log").symlink_to(precious)
    with pytest.raises(UserError, match=r"node-0\.log"):
        files.open_for_append(tmp_path / "node-0.log")
    with pytest.raises(NotWritten, match=r"node-0\.log"):
        Inbox(tmp_path, "n1").write_at(PurePosixPath("node-0.log"), 0, b"evil")
    assert precious.read_text() == "mine\n"


def test_a_link_of_ones_own_to_a_file_that_is_not_there_is_followed(tmp_path: Path) -> None:
    (tmp_path / "known_hosts").symlink_to(tmp_path / "dotfiles")
    files.append_line(tmp_path / "known_hosts", "host key", mode=permissions.PRIVATE)
    assert (tmp_path / "dotfiles").read_text() == "host key\n"
