"""What runs inside a running job, as far as that needs no cluster."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import cast

import pytest
from typer.testing import CliRunner

from clusterkit.cli.frame import job_args
from clusterkit.cli.frame.main import app
from clusterkit.cli.jobs import cancel, inside
from clusterkit.cli.jobs.inside import _ports
from clusterkit.core.data import read_template
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterKind, JobState, JobStatus
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.jobs.find import SeveralRunsError
from clusterkit.jobs.inside import Forward, Place, Said, _said, listens_here
from clusterkit.jobs.state.load import Job
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import Output, Reach, ReachProblem
from clusterkit.transport.ssh.attach import Login
from clusterkit.transport.ssh.config import SshOptions
from tests.helpers.needs import require

PROGRAM = read_template("programs/machine/enter.sh")
RUN = f"run-{os.getpid()}"


@contextmanager
def process(folder: Path, *before: str, **variables: str) -> Iterator[None]:
    """Run a process with these variables in a folder until the block ends."""
    ready = folder / "ready"
    with subprocess.Popen(
        [*before, "sh", "-c", f"touch {ready}; exec sleep 300"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "CK_TMP": "/tmp", **variables},
    ) as one:
        deadline = time.monotonic() + 50
        while not ready.exists() or b"exec" in Path(f"/proc/{one.pid}/cmdline").read_bytes():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        try:
            yield
        finally:
            one.kill()


def enter(*words: str, marker: str = f"{RUN}:", node: str = "", runtime: str = "") -> str:
    """Return what a command prints inside, and `exit N` where it failed."""
    done = subprocess.run(
        ["bash", "-c", PROGRAM, "clusterkit", marker, node, runtime, *words],
        env={"PATH": os.environ["PATH"], "FOREIGN": "1", "TERM": "vt7"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout if not done.returncode else f"{done.stderr}exit {done.returncode}"


class TestEnter:
    def test_variables_and_folder_are_those_of_the_process(self, tmp_path: Path) -> None:
        with process(tmp_path, CK_JOB_UID=f"{RUN}:0", ODD="two\nlines 'q'"):
            words = ("sh", "-c", 'echo "$ODD|$FOREIGN|$TERM|$PWD"')
            assert enter(*words) == f"two\nlines 'q'||vt7|{tmp_path}\n"
            assert enter("sh", "-c", "exit 9") == "exit 9"
            said = "clusterkit: error: n7: there is no command no-such-program\nexit 127"
            assert enter("no-such-program", node="n7") == said
            assert enter("./no-such-program", node="n7").endswith("./no-such-program\nexit 127")

    def test_a_launcher_comes_before_its_ranks(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        with (
            process(tmp_path / "a", CK_JOB_UID=f"{RUN}:0", RANK="3"),
            process(tmp_path / "b", CK_JOB_UID=f"{RUN}:0"),
        ):
            assert enter("pwd") == f"{tmp_path}/b\n"

    def test_only_processes_that_the_node_script_started_count(self, tmp_path: Path) -> None:
        with process(tmp_path, CK_JOB_UID=f"{RUN}:0", CK_NODE_NAME="n1"):
            assert enter("true", marker=f"{RUN}:0", node="n1") == ""
            for wrong in ({"marker": f"{RUN}:1"}, {"node": "n2"}, {"marker": RUN}):
                assert "no process of the job runs here" in enter("true", **wrong)
        with process(tmp_path, "env", "-u", "CK_TMP", CK_JOB_UID=f"{RUN}:0"):
            assert "no process of the job runs here" in enter("true")

    def test_a_number_is_no_beginning_of_another(self, tmp_path: Path) -> None:
        with process(tmp_path, CK_JOB_UID=f"{RUN}:10"):
            assert enter("true", marker=f"{RUN}:1").endswith("exit 2")
            assert enter("true", marker=f"{RUN}:10") == ""

    def test_a_container_is_entered(self, tmp_path: Path) -> None:
        apart = ["unshare", "--user", "--map-current-user", "--mount"]
        if not shutil.which("nsenter") or subprocess.run([*apart, "true"], check=False).returncode:
            require("unshare")
            pytest.skip("this machine allows no user namespaces")
        (tmp_path / "image").mkdir()
        mounted = f"mount --bind /usr {tmp_path}/image 2>/dev/null || true"
        inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
        with process(
            tmp_path, *inside, f'{mounted}; exec "$@"', "sh", CK_JOB_UID=f"{RUN}:0", HERE="inside"
        ):
            shown = enter("sh", "-c", "echo $HERE; ls image", runtime="apptainer")
            assert shown.startswith("inside\n")
            assert "bin\n" in shown
            assert not os.listdir(tmp_path / "image")  # noqa: PTH208 - seen from outside

    @pytest.mark.parametrize(("runtime", "tool"), [("docker", "docker"), ("apptainer", "nsenter")])
    def test_a_node_without_the_tool_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, tool: str
    ) -> None:
        for name in ("bash", "cut", "grep", "readlink", "sh", "sleep", "sort", "touch", "uname"):
            (tmp_path / name).symlink_to(shutil.which(name) or name)
        apart = [shutil.which("unshare") or "", "--user", "--map-current-user", "--mount"]
        if runtime == "apptainer" and subprocess.run([*apart, "true"], check=False).returncode:
            require("unshare")
            pytest.skip("this machine allows no user namespaces")
        before = apart if runtime == "apptainer" else []
        monkeypatch.setenv("PATH", str(tmp_path))
        with process(tmp_path, *before, CK_JOB_UID=f"{RUN}:0", CK_WORKDIR="/", CK_CONTAINER="c"):
            refused = enter("true", marker=f"{RUN}:0", node="n7", runtime=runtime)
        said = (
            f"n7: there is no {tool}, which leads into the {runtime} container of the job\nhint: "
        )
        assert refused.startswith(f"clusterkit: error: {said}")
        assert refused.endswith("\nexit 127")

    def test_a_job_whose_container_is_not_there_yet_is_told(self, tmp_path: Path) -> None:
        with process(tmp_path, CK_JOB_UID=f"{RUN}:0"):
            assert "in its container yet" in enter("true", runtime="enroot")


@pytest.mark.parametrize(
    ("text", "ports"), [("6006", (6006, 6006)), ("8888:6006", (8888, 6006)), ("0:1", (0, 1))]
)
def test_ports(text: str, ports: tuple[int, int]) -> None:
    assert _ports(text) == ports


@pytest.mark.parametrize("text", ["", "0", ":", "a", "1:", ":x", "65536", "-1", "1:2:3", "²"])
def test_what_is_no_port_is_told(text: str) -> None:
    with pytest.raises(UserError, match="ports are numbers"):
        _ports(text)


def test_a_port_of_this_machine_that_is_in_use_is_told() -> None:
    place = cast(Place, None)  # a node is reached only once the port is ours
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match="Address already in use") as refused:
            Forward(place, 6006, local=port, told=pytest.fail)
    hint = f"take another one here, such as {port + 1}:6006; 0:6006 takes any"
    assert str(refused.value) == (
        f"port {port} of this machine: Address already in use\nhint: {hint}"
    )


class Connection:
    """A connection to sshd, as paramiko has it: it can break, and carries one word back."""

    def __init__(self) -> None:
        self.alive = True

    def is_active(self) -> bool:
        return self.alive

    def open_channel(self, *_: object) -> socket.socket:
        ours, theirs = socket.socketpair()
        threading.Thread(target=self._echo, args=(theirs,), daemon=True).start()
        return ours

    @staticmethod
    def _echo(far: socket.socket) -> None:
        with far, suppress(BrokenPipeError):  # whoever tries the port sends nothing
            far.sendall(far.recv(100).upper())


def test_a_forward_goes_on_over_a_new_login_where_its_own_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a laptop has slept; while nobody answers it says so, and keeps its port."""
    made: list[Connection] = []
    no_route = [False]

    def logged_in(login: Login) -> Connection:
        if no_route[0]:
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        made.append(Connection())
        return made[-1]

    monkeypatch.setattr(Login, "_logged_in", logged_in)
    told: SimpleQueue[str] = SimpleQueue()
    login = Login("n7", SshOptions())
    monkeypatch.setattr("clusterkit.jobs.inside._login", lambda _: login)
    job = SimpleNamespace(run=None, submission=SimpleNamespace(kind=ClusterKind.SSH))
    monkeypatch.setattr(
        "clusterkit.jobs.inside.load_job",
        lambda _: SimpleNamespace(status=JobStatus(state=JobState.RUNNING)),
    )
    place = cast(Place, SimpleNamespace(job=job, node="n7"))
    forward = Forward(place, 6006, local=0, told=told.put)
    threading.Thread(target=forward.serve, daemon=True).start()

    def answer() -> bytes:
        with socket.create_connection(("127.0.0.1", forward.local), 60) as near:
            with suppress(ConnectionError):  # a connection that is closed unread is reset
                near.sendall(b"hello")
                return near.recv(100)
            return b""

    assert answer() == b"HELLO"
    made[0].alive = False
    assert answer() == b"HELLO"
    assert len(made) == 2
    made[1].alive, no_route[0] = False, True
    assert answer() == b""
    assert "n7: " in told.get(timeout=60)
    no_route[0] = False
    assert answer() == b"HELLO"
    assert len(made) == 3
    forward._listener.close()


def test_what_a_node_says_is_told_apart_from_why_it_says_nothing() -> None:
    def said(output: Output | None, detail: str = "") -> Said:
        problem = ReachProblem.TIMEOUT if detail else None
        reach = Reach(problem=problem, detail=detail)
        return _said(Reply(node="n1", reach=reach, outputs={"run": output} if output else {}), 5.0)

    assert said(Output(stdout="x\n", exit_code=3)) == Said(node="n1", exit_code=3, output="x\n")
    slow = said(Output(stdout="x\n", exit_code=124, seconds=5.1))
    assert slow == Said(node="n1", output="x\n", problem="it had not ended after 5 s")
    quick = said(Output(stdout="", exit_code=124, seconds=0.1))
    assert quick.exit_code == 124
    assert said(None, "no route") == Said(node="n1", problem="no route")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["exec", "x", "--all", "--node", "1", "true"], "--all: on all nodes"),
        (["exec", "x", "--json", "true"], "--json goes with --all"),
        (["exec", "x", "--timeout", "5", "true"], "--timeout goes with --all"),
        (["exec", "x", "--all", "--timeout", "0", "true"], "--timeout 0: seconds"),
        (["exec", "x", "--tty", "true"], "there is no terminal here"),
        (["shell", "x"], "there is no terminal here"),
        (["nodes", "run", "--timeout", "nan", "true"], "--timeout nan: seconds"),
        (["exec", "x", "--", "hostname; ls"], "no program is called 'hostname; ls'"),
        (["nodes", "run", "--", "uptime -p"], "no program is called 'uptime -p'"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], message: str) -> None:
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, UserError)
    assert error.problems[0].message.startswith(message)


def test_whether_anybody_listens_on_a_port_of_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listens_here(port)
        server.settimeout(0)
        with pytest.raises(BlockingIOError):  # it may take one connection alone
            server.accept()
    assert not listens_here(port)


def test_of_several_jobs_of_a_name_the_one_that_runs_is_entered_or_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [RunFolder(tmp_path / f"train-2026112{day}-120000-abcdef") for day in (1, 2, 3)]
    states = dict.fromkeys(runs, JobState.SUCCEEDED)
    submission = Submission(
        run_id="x", name="train", cluster="c", kind=ClusterKind.SLURM, framework="env", nodes=1,
        tasks=1, submitted_at=time.time() - 3600,
    )  # fmt: skip

    def several(word: str, _: object) -> RunFolder:
        raise SeveralRunsError(word, runs)

    def loaded(found: Iterable[RunFolder]) -> list[Job]:
        return [
            Job(
                run=run,
                submission=dataclasses.replace(submission, job_id=str(7 + number)),
                status=JobStatus(state=states[run]),
            )
            for number, run in enumerate(found)
        ]

    for name in ("find_run", "find_runs"):
        monkeypatch.setattr(job_args, name, several)
    monkeypatch.setattr(job_args, "load_jobs", loaded)
    monkeypatch.setattr(inside, "load_job", lambda run: next(iter(loaded([run]))))
    monkeypatch.setattr(sys, "argv", ["clusterkit", "exec", "train", "--", "hostname"])
    with pytest.raises(UserError, match="could be any of 3 runs") as why:
        inside._running("train")
    assert why.value.problems[0].hint == (
        "by its job id: clusterkit exec 9 -- hostname\n"
        "  9  succeeded  1:00 h ago\n  8  succeeded  1:00 h ago\n  7  succeeded  1:00 h ago"
    )
    states[runs[1]] = JobState.RUNNING
    assert inside._running("train").run == runs[1]
    assert capsys.readouterr().err == "train: of 3 jobs, 8 runs\n"
    assert cancel._named("train").runs == (runs[1],)
    assert capsys.readouterr().err == "train: of 3 jobs, 8 is not over\n"
    states[runs[0]] = JobState.RUNNING
    for named in (inside._running, cancel._named):
        with pytest.raises(UserError, match="could be any of 3 runs"):
            named("train")
