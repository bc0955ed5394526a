"""Jobs on this machine that do what jobs should not, and clients that are not alone or in time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterkit.core import processes
from clusterkit.executors import submit_plan
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers.command_line import typed_in
from tests.helpers.plans import make_cluster, make_plan, node_script

MIB = 1 << 20
NODES = 2
AN_HOUR_OFF = """
import sys, time
real, ahead = time.time, float(sys.argv.pop(1))
time.time = lambda: real() + ahead
from clusterkit.cli import main
main()
"""


class Desk:
    """A configuration with one cluster of kind local, and the jobs started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.config = folder / "clusterkit.yaml"
        self.config.write_text(f"clusters:\n  mine: {{kind: local, run_dir: {self.runs}}}\n")
        self.environment = {**os.environ, "CLUSTERKIT_CONFIG_FILE": str(self.config)}
        self.started: list[RunFolder] = []

    def start(self, body: str) -> RunFolder:
        plan = make_plan(make_cluster(self.runs), nodes=NODES)
        run = runfolder.create(plan.cluster, plan.name)
        self.started.append(run)
        submit_plan(plan, [node_script(body)], run, secrets={}, command_line=[])
        return run

    def running(self, body: str) -> RunFolder:
        """Start a job, and wait until each of its nodes has said something."""
        run = self.start(f"echo on; {body}")
        await_true(lambda: all(run.log(k).exists() and run.log(k).stat().st_size for k in (0, 1)))
        return run

    def ck(self, *words: str) -> subprocess.CompletedProcess[str]:
        return typed_in(self.folder, *words, CLUSTERKIT_CONFIG_FILE=str(self.config))

    def client(self, *words: str, ahead_s: float = 0.0) -> subprocess.CompletedProcess[str]:
        """Run the same in a process of its own, by whose clock it is later."""
        argv = [sys.executable, "-c", AN_HOUR_OFF, str(ahead_s), *words]
        return subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, check=False, timeout=300
        )

    def state(self, run: RunFolder, *, ahead_s: float = 0.0) -> str:
        words = ("status", run.run_id, "--json")
        said = self.client(*words, ahead_s=ahead_s) if ahead_s else self.ck(*words)
        state: str = json.loads(said.stdout)["state"]
        return state


def left(run: RunFolder) -> set[int]:
    return {pid for pid in processes.marked(run.marker(), prefix=True) if processes.alive(pid)}


def await_true(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    for run in made.started:
        processes.kill_all(lambda run=run: processes.marked(run.marker(), prefix=True))


def test_following_much_output_takes_bounded_memory_and_loses_nothing(desk: Desk) -> None:
    each = 48 * MIB
    run = desk.start(
        f"yes 'step 00000007 loss 1.2345 0123456789' 2>/dev/null | head -c {each}; echo; exit 0"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "clusterkit", "logs", "-f", run.run_id],
        env=desk.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as client:  # fmt: skip
        assert client.stdout is not None
        size = lines = peak_kib = 0
        while block := client.stdout.read(MIB):
            size += len(block)
            lines += block.count(b"\n")
            about = Path(f"/proc/{client.pid}/status").read_text().splitlines()
            peaks = [int(line.split()[1]) for line in about if line.startswith("VmHWM")]
            peak_kib = max([peak_kib, *peaks])
    assert client.returncode == 0
    assert size == NODES * (each + 1) + lines * len("[node-0] ")
    assert 10 * 1024 < peak_kib < 100 * 1024


def test_output_in_another_encoding_comes_through_every_verb(desk: Desk) -> None:
    run = desk.start(r"printf 'gr\374n \377\376 \000 \033[31mred\n'; exit 3")
    waited = desk.ck("wait", run.run_id)
    assert "  | gr\ufffdn \ufffd\ufffd   red" in waited.stderr.splitlines()
    text = json.loads(desk.ck("logs", run.run_id, "--json").stdout)["nodes"][0]["text"]
    assert text.startswith("gr\ufffdn")
    followed = desk.client("logs", "-f", run.run_id)
    assert followed.returncode == 1
    assert "gr\ufffdn" in followed.stdout


def test_a_script_that_daemonises_ends_with_its_job(desk: Desk) -> None:
    daemon = "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0)"
    run = desk.start(
        f'{sys.executable} -c \'{daemon}; open("{desk.folder}/" + str(os.getpid()), "w");'
        f' open("{desk.folder}/on-" + os.environ["CK_NODE_RANK"], "w"); time.sleep(300)\''
        f" </dev/null >/dev/null 2>&1; until [[ -e {desk.folder}/on-$CK_NODE_RANK ]];"
        " do sleep 0.1; done"
    )
    assert desk.ck("wait", run.run_id).returncode == 0
    daemons = [int(path.name) for path in desk.folder.iterdir() if path.name.isdigit()]
    assert len(daemons) == NODES
    assert not [pid for pid in daemons if processes.alive(pid)]


def test_a_run_folder_that_is_removed_ends_the_job_and_is_told(desk: Desk) -> None:
    run = desk.running("sleep 300")
    assert left(run)
    with subprocess.Popen(
        [sys.executable, "-m", "clusterkit", "wait", run.run_id],
        env=desk.environment, stderr=subprocess.PIPE, text=True,
    ) as waiting:  # fmt: skip
        assert waiting.stderr is not None
        assert "running" in waiting.stderr.readline()
        shutil.rmtree(run.path)
        _, said = waiting.communicate(timeout=120)
    assert waiting.returncode == 2
    assert f"{run.path} has been removed" in said
    await_true(lambda: not left(run))
    asked = desk.ck("status", run.run_id)
    assert asked.returncode == 2
    assert "no job" in asked.stderr
    assert desk.ck("status").returncode == 0


def test_a_damaged_submission_is_named_and_hides_no_other_job(desk: Desk) -> None:
    damaged, whole = desk.start("true"), desk.start("true")
    desk.ck("wait", whole.run_id)
    desk.ck("wait", damaged.run_id)
    damaged.state.unlink()
    damaged.submission.write_text("{")
    listed = desk.ck("status")
    assert listed.returncode == 0
    assert f"local-{whole.key}" in listed.stdout
    assert f"warning: {damaged.submission} is damaged" in listed.stderr
    asked = desk.ck("status", damaged.run_id)
    assert asked.returncode == 2
    assert f"{damaged.submission} is damaged: nobody can tell which job this was" in asked.stderr


def test_clients_that_cancel_at_once_agree(desk: Desk) -> None:
    run = desk.running("trap '' TERM; sleep 300")
    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(lambda _: desk.client("cancel", run.run_id), range(3)))
    assert [done.returncode for done in ended] == [0, 0, 0], ended
    assert desk.state(run) == "cancelled"
    assert not left(run)


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_clients_whose_clocks_are_an_hour_off(
    desk: Desk, ahead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: real() + ahead_s)
        run = desk.running("sleep 3; exit $((CK_NODE_RANK * 3))")
        stopped = desk.running("sleep 300")
    assert desk.state(stopped, ahead_s=-ahead_s) == "running"
    assert desk.client("wait", run.run_id, ahead_s=-ahead_s).returncode == 1
    assert desk.state(run) == "failed"
    assert desk.client("cancel", stopped.run_id, ahead_s=ahead_s).returncode == 0
    assert desk.state(stopped) == "cancelled"
    assert not left(stopped)
