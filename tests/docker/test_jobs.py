"""Jobs in containers on the practice cluster, each of two hosts with a Docker engine of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import processes
from clusterkit.core.model import ContainerPlan, ContainerRuntime, GpuRequest, NodeCommand
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.launch.render import render
from tests.docker import Engine
from tests.docker.engine import MissingEngineError
from tests.docker.hosts import engine_in, offer
from tests.helpers.lab_jobs import Cluster, await_true, started
from tests.helpers.needs import lack
from tests.helpers.plans import make_cluster, make_plan
from tests.lab import Lab
from tests.lab.hosts import pids, read_cmdline
from tests.lab.lab import UNSCALED

pytestmark = [pytest.mark.docker, pytest.mark.lab]

HOSTS = ("n1", "n2")
IMAGE = "debian-base:bookworm"
USER, GROUP = 4711, 4712
"""Known to nobody: neither the host nor the image has a name for them."""
WAYS = (("ssh", "docker"), ("slurm", "docker"), ("ssh", "compose"))
"""How nodes are reached, and what starts their containers."""
LONG = f"8640.{os.getpid()}"
FOREVER = f"setsid sleep {LONG} & (exec env -i sleep {LONG}) & echo begun; wait"
"""It also starts what leaves its session, and what has no environment to be known by."""


@pytest.fixture(scope="module")
def engines(lab: Lab) -> Iterator[dict[str, Engine]]:
    """Give an engine in each host, where every program there finds it; one that was up stays up."""
    found = {host: engine_in(lab, host, Path(f"{lab.root}-dk-{host}")) for host in HOSTS}
    ours = [engine for engine in found.values() if not engine.is_up()]
    try:
        for host, engine in found.items():
            engine.up()
            offer(lab, host, engine)
            engine.base_image()
        yield found
    except MissingEngineError as error:
        lack(str(error))
    finally:
        with ThreadPoolExecutor() as pool:
            list(pool.map(Engine.down, ours))


class Docks(Cluster):
    """The practice cluster as far as it has engines."""

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        kind: str,
        engines: dict[str, Engine],
        runtime: str = "docker",
    ) -> None:
        """Describe the cluster in `folder`, which its hosts share."""
        super().__init__(lab, folder, kind)
        self.engines = engines
        self.runtime = runtime

    def start(self, body: str, **options: Any) -> RunFolder:
        """Submit a job in a container."""
        where = {"hosts": HOSTS} if self.kind == "ssh" else {"exclude": ["n3"]}
        # The client finds Compose there.
        env = {"DOCKER_CONFIG": self.engines["n1"].environment["DOCKER_CONFIG"]}
        wanted = {"nodes": 2, "image": IMAGE, "container": self.runtime, **where, **options}
        return self.submit(body, **{**wanted, "env": {**env, **options.get("env", {})}})

    def end(self, body: str, **options: Any) -> tuple[RunFolder, str, int | None]:
        """Run a job to its end."""
        run = self.start(body, **options)
        self.ck("wait", run.run_id)
        return (run, *self.state(run))

    def containers(self) -> list[str]:
        """Return every container that an engine knows, running or not."""
        words = ("ps", "--all", "--format", "{{.Names}} {{.Status}}")
        return [line for one in self.engines.values() for line in one.run(*words).splitlines()]

    def sleepers(self) -> list[str]:
        """Return what still sleeps of FOREVER, also in containers, whose processes all are here."""
        found = (read_cmdline(pid) for pid in pids())
        return [" ".join(words) for words in found if words == ("sleep", LONG)]

    def await_nothing(self, run: RunFolder) -> None:
        """Wait a moment until there is no process and no container of the job."""
        await_true(lambda: not (self.containers() or self.sleepers() or self.left(run)), 15.0)


@pytest.fixture(params=WAYS, ids="-".join)
def docks(
    lab: Lab, engines: dict[str, Engine], request: pytest.FixtureRequest, tmp_path_factory: Any
) -> Docks:
    kind, runtime = request.param
    return Docks(lab, tmp_path_factory.mktemp("docks"), kind, engines, runtime)


@pytest.fixture
def rack(lab: Lab, engines: dict[str, Engine], tmp_path: Path) -> Docks:
    return Docks(lab, tmp_path, "ssh", engines)


def logs(run: RunFolder) -> list[str]:
    return [run.log(rank).read_text() for rank in range(2)]


def test_a_job_has_its_variables_folders_and_exit_code(docks: Docks, tmp_path: Path) -> None:
    source = docks.folder / "data"
    source.mkdir()
    (source / "in").write_text("given\n")
    body = (
        'echo "$SAID from $CK_NODE_NAME at $PWD"; cat /data/in; [ -w "$HOME" ] || echo no home;'
        'echo x >/data/no || echo read-only; echo kept >"$CK_RESULTS/$CK_NODE_RANK";'
        'until [ -s "$CK_RESULTS/0" ] && [ -s "$CK_RESULTS/1" ]; do sleep 0.1; done;'
        "exit $((CK_NODE_RANK * 7))"  # which ends the other node
    )
    run, state, code = docks.end(body, env={"SAID": "a 'b' $c"}, mounts=[f"{source}:/data:ro"])
    assert (state, code) == ("failed", 7)
    for host, log in zip(HOSTS, logs(run), strict=True):
        # Docker carries stdout and stderr apart: a line of one can overtake one of the other.
        said = [f"a 'b' $c from {host} at /tmp", "given", "read-only"]
        assert [line for line in log.splitlines() if line in said] == said
        assert "no home" not in log
    assert (run.results / "0").read_text() == "kept\n"
    assert docks.containers() == []


def test_a_cancelled_job_leaves_nothing(docks: Docks) -> None:
    run = docks.start(FOREVER)
    await_true(started(run, 2))
    assert len(docks.containers()) == 2
    await_true(lambda: len(docks.sleepers()) == 4)  # bash has forked, and perhaps not executed
    assert docks.ck("cancel", run.run_id)[0] == 0
    docks.ck("wait", run.run_id)
    assert docks.state(run)[0] == "cancelled"
    docks.await_nothing(run)


def test_a_command_may_tidy_up_when_it_is_cancelled(docks: Docks) -> None:
    # Slurm repeats itself: as the job ends, and once one of its nodes has.
    docks.environment |= UNSCALED  # three seconds from SIGTERM to SIGKILL otherwise
    save = 'trap "" TERM; sleep $((CK_NODE_RANK * 2)); echo saved; exit 0'
    run = docks.start(f"trap '{save}' TERM; echo begun; sleep 60 & wait")
    await_true(started(run, 2))
    docks.ck("cancel", run.run_id)
    docks.ck("wait", run.run_id)
    assert docks.state(run)[0] == "cancelled"
    assert ["saved" in log.splitlines() for log in logs(run)] == [True, True], logs(run)


def test_what_a_killed_worker_started_ends(docks: Docks) -> None:
    run = docks.start(FOREVER)
    await_true(started(run, 2))
    # One that it forks for a command has its name for a moment, and may be gone by now.
    for process in docks.lab.processes("n1", r"clusterkit\.executors\.node "):
        processes.send(process.pid, signal.SIGKILL)
    docks.ck("wait", run.run_id)
    assert docks.state(run)[0] == "failed"
    docks.await_nothing(run)


def test_a_container_ends_when_every_process_of_the_job_is_killed_at_once(docks: Docks) -> None:
    """As Slurm does where it keeps jobs in control groups: nobody is left to tidy up."""
    run = docks.start(FOREVER)
    await_true(started(run, 2))
    doomed = [
        process.pid
        for host in HOSTS
        for process in docks.lab.processes(host)
        if run.run_id.encode() in _environ(process.pid)
        or any(run.run_id in word for word in process.argv)
    ]
    assert len(doomed) >= 8
    for pid in doomed:
        processes.send(pid, signal.SIGSTOP)  # stopped first, so that none of them sees another go
    for pid in doomed:
        processes.send(pid, signal.SIGKILL)
    docks.await_nothing(run)


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_a_node_that_fails_ends_the_other(docks: Docks) -> None:
    run, state, code = docks.end('[ "$CK_NODE_RANK" = 0 ] || exit 5; ' + FOREVER)
    assert (state, code) == ("failed", 5)
    docks.await_nothing(run)


def test_a_signal_is_the_exit_code(docks: Docks) -> None:
    assert docks.end("kill -KILL $$")[1:] == ("failed", 137)


def test_ranks_hear_of_the_time_limit_and_nothing_outlives_it(rack: Docks) -> None:
    # Notices are ignored unless a rank says otherwise, and no shell may trap what it finds ignored.
    rank = "perl -e '$| = 1; $SIG{USR2} = sub { print \"rank told\\n\" }; sleep 1 while 1'"
    run, state, _ = rack.end(f"{rank} & echo begun; wait", time="0:24")  # told after 18 s
    assert state == "timeout"
    assert all("rank told" in log for log in logs(run))
    rack.await_nothing(run)


def test_what_keeps_a_container_from_starting_is_said(rack: Docks) -> None:
    rack.environment |= UNSCALED  # the node that fails last has half the time otherwise
    for options, words in (
        ({"image": "no/such:image"}, ("no image no/such:image", "images distribute")),
        ({"mounts": ["/not/there:/data"]}, ("/not/there is missing", "--mount")),
        ({"env": {"DOCKER_HOST": "unix:///not/there"}}, ("no Docker daemon answers", "systemctl")),
    ):
        run, state, code = rack.end("true", **options)
        assert (state, code) == ("failed", 125)
        assert all(f"error: {host}: " in log for host, log in zip(HOSTS, logs(run), strict=True))
        assert all(word in log for word in words for log in logs(run))


@pytest.fixture
def by_hand(engines: dict[str, Engine], lab: Lab) -> Callable[..., Any]:
    """Return what runs a node script on the first host as a user of no name, in a folder of his."""
    folder = Path(tempfile.mkdtemp(dir=lab.shared))  # not below a folder that only root may enter
    os.chown(folder, USER, USER)
    container = ContainerPlan(runtime=ContainerRuntime.DOCKER, image=IMAGE)
    cluster = make_cluster(folder, gpu_request=GpuRequest.NONE)
    command = NodeCommand(argv=("bash", "-c", "id -u; id -G; touch mine; exit 3"))
    plan = make_plan(cluster, nodes=1, container=container, command=command, workdir=str(folder))
    script = next(file.text for file in render(plan) if file.name == "node.sh")

    def run(*groups: int) -> subprocess.CompletedProcess[str]:
        ids = [f"--reuid={USER}", f"--regid={USER}", f"--groups={','.join(map(str, groups))}"]
        words = ["setpriv", *ids, "bash", "-c", script]
        engine = engines[HOSTS[0]].socket
        engine.parent.chmod(0o755)
        os.chown(engine, 0, GROUP)
        return lab.run(HOSTS[0], words, cwd="/", env={"HOME": "/"})

    run.folder = folder  # type: ignore[attr-defined]
    return run


def test_files_belong_to_who_submits(by_hand: Callable[..., Any]) -> None:
    done = by_hand(USER, GROUP)
    assert done.returncode == 3, done.stderr
    assert done.stdout == f"{USER}\n{USER} {GROUP}\n"
    assert (by_hand.folder / "mine").stat().st_uid == USER  # type: ignore[attr-defined]


def test_who_may_not_use_docker_is_told_how(by_hand: Callable[..., Any]) -> None:
    done = by_hand(USER)
    assert done.returncode == 125
    assert "may not use Docker: " in done.stderr
    assert "usermod -aG docker" in done.stderr
