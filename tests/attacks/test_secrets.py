"""While a job runs, its secrets are looked for where another user could look, with umask 000.

A secret is the value of a variable that the job gets (`--secret`), and the token by which its nodes
know each other. Looked for as root, who sees all: only the places named here may hold one, and of
those a stranger reads none.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.helpers.desk import Desk

STRANGER = 54321
VALUE = "hush-9f31c7d2"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
MAY_HOLD = {"secrets.env", "token", "ssh.json", "plan.json"}
"""Files of 0600 in a folder that is closed or that follow the same rule."""
SLEEP = "import time; print('asleep', flush=True); time.sleep(120)"

pytestmark = pytest.mark.needs("root")


def holders(folders: Iterable[Path], secrets: Iterable[bytes]) -> Iterator[Path]:
    """Yield the files that hold one of the secrets, packed or not."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_symlink() or not path.is_file() or path.stat().st_size > 8 << 20:
                continue
            content = path.read_bytes()
            if any(secret in content for secret in secrets):
                yield path


def command_lines() -> dict[int, bytes]:
    """Return what ps shows to everybody."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                found[int(path.name)] = (path / "cmdline").read_bytes()
            except OSError:
                continue
    return found


def readable_by_a_stranger(paths: Iterable[Path]) -> list[str]:
    """Return those that somebody without rights of his own can open."""
    script = (
        "import sys\n"
        "for path in sys.argv[1:]:\n"
        "    try: open(path).close(); print(path)\n"
        "    except OSError: pass\n"
    )
    done = subprocess.run(
        ["python3", "-c", script, *map(str, paths)], user=STRANGER, group=STRANGER,
        extra_groups=[], cwd="/", env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.split()


def tokens_of(run: Path) -> set[bytes]:
    """Return the tokens that stand in the run folder."""
    found = {VALUE.encode()}
    for path in run.glob("*"):
        if path.name == "token":
            found.add(path.read_bytes().strip())
        elif path.suffix == ".json" and path.is_file():
            document = json.loads(path.read_text())
            token = document.get("token") if isinstance(document, dict) else None
            if token:
                found.add(str(token).encode())
    return found


def inspect(run: Path, beside: Iterable[Path], more: str = "") -> None:
    """Look for the secrets of the running job in `run`."""
    secrets = tokens_of(run)
    for pid in environments_with(VALUE.encode()):
        path = Path("/proc", str(pid), "environ")
        found = dict(pair.split(b"=", 1) for pair in path.read_bytes().split(b"\0") if b"=" in pair)
        if b"CK_TOKEN" in found:
            secrets.add(found[b"CK_TOKEN"])
        assert not readable_by_a_stranger([path])
    assert len(secrets) >= 2, "the job has no token"
    shown = command_lines()
    assert not [pid for pid, line in shown.items() if any(secret in line for secret in secrets)]
    assert not [secret for secret in secrets if secret.decode() in more]
    holding = list(holders([run, *beside], secrets))
    assert {path.name for path in holding} <= MAY_HOLD, holding
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in holding} <= {"0o600"}
    assert not readable_by_a_stranger(holding)
    for path in (run, *run.rglob("*")):
        if path.name.endswith("_batch.out"):
            continue  # slurmd makes it, as the umask has it, in a folder that is closed
        assert not stat.S_IMODE(path.lstat().st_mode) & 0o077 or path.is_symlink(), path


def environments_with(value: bytes) -> Iterator[int]:
    """Yield the processes that have a value in their environment."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            try:
                content = (path / "environ").read_bytes()
            except OSError:
                continue
            if value in content:
                yield int(path.name)


def until_asleep(run: Path) -> None:
    deadline = time.monotonic() + 60
    while not any("asleep" in p.read_text() for p in (run / "logs").glob("*.log")):
        assert time.monotonic() < deadline, "the job does not start"
        time.sleep(0.2)


def test_on_this_machine(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "train.py").write_text(SLEEP)
    (tmp_path / "clusterkit.yaml").write_text(f"clusters: {{local: {{run_dir: {tmp_path}/runs}}}}")
    environ = {
        **os.environ, "PATH": PATH, "HOME": str(tmp_path), "TMPDIR": str(temporary), "MINE": VALUE,
    }  # fmt: skip

    def clusterkit(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "clusterkit", *words], cwd=tmp_path, env=environ,
            umask=0o000, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip

    done = clusterkit(
        "submit", "--json", "--cluster", "local", "--framework", "torchrun", "--nodes", "2",
        "--preflight", "off", "--secret", "MINE", "train.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = Path(json.loads(done.stdout)["run_dir"])
    try:
        until_asleep(run)
        said = clusterkit("status", "latest", "--json").stdout
        said += clusterkit("logs", "latest").stdout
        inspect(run, [temporary], said)
    finally:
        clusterkit("cancel", "latest")
    bundle = clusterkit("preflight", "--via", "local", "--save", "bundle", "--html", "page.html")
    assert (tmp_path / "bundle").is_dir(), bundle.stderr
    beside = [tmp_path / "bundle", temporary]
    assert not list(holders(beside, [VALUE.encode()]))
    assert VALUE not in (tmp_path / "page.html").read_text()
    for path in (tmp_path / "bundle", *(tmp_path / "bundle").rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


@pytest.mark.lab
@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_on_the_practice_cluster(desk: Desk, cluster: str) -> None:
    script = desk.write("sleep.py", SLEEP)
    before = os.umask(0o000)
    try:
        done = desk.submit(
            "--cluster", cluster, "--framework", "torchrun", "--nodes", "2", "--preflight", "off",
            "--secret", "MINE", script, env={"MINE": VALUE},
        )  # fmt: skip
    finally:
        os.umask(before)
    run = desk.folder / "runs" / Path(done["run_dir"]).name
    try:
        until_asleep(run)
        more = desk.lab.run("head", ["scontrol", "show", "job"]).stdout if cluster == "lab" else ""
        # All hosts share /tmp, where each node has a folder for the job.
        nodes = list(Path("/tmp").glob(f"clusterkit-{done['job_id']}-*"))
        assert len(nodes) >= 2
        inspect(run, nodes, more)
        assert {stat.S_IMODE(path.stat().st_mode) for path in nodes} == {0o700}
    finally:
        desk.clusterkit("cancel", done["job_id"])
