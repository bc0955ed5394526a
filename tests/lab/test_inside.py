"""`exec`, `shell`, `forward` and `nodes run` on the practice cluster, as typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.desk import Desk, read_to_end
from tests.helpers.lab_jobs import await_true
from tests.lab.test_jobs import wait_for_output

pytestmark = [pytest.mark.lab]

SERVES = """
import http.server, os, threading
handler = http.server.SimpleHTTPRequestHandler
handler.log_message = lambda *words: None
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["SERVED"])), handler)
print("stands", os.environ["CK_NODE_RANK"], flush=True)
server.serve_forever()
"""
SERVED = "18473"
UNSERVED = "18474"
DEBUGGED, PAGES = "18475", "18476"
DEBUGS = """
import json, socket, sys
stream = socket.create_connection(("localhost", int(sys.argv[1])), 60).makefile("rwb")
def ask(command, awaited, **arguments):
    request = {"seq": 1, "type": "request", "command": command, "arguments": arguments}
    body = json.dumps(request).encode()
    stream.write(b"Content-Length: %d\\r\\n\\r\\n%s" % (len(body), body))
    stream.flush()
    while True:
        header = stream.readline() + stream.readline()
        found = json.loads(stream.read(int(header.split()[1])))
        if awaited in (found.get("event"), found.get("command")):
            return found.get("body")
ask("initialize", "initialize", adapterID="test")
ask("attach", "initialized", justMyCode=False)
ask("configurationDone", "configurationDone", all=True)
where = "__import__('os').environ['CK_NODE_NAME']"
print(ask("evaluate", "evaluate", expression=where)["result"])
"""
"""Attach a debugger, let the program go on, and ask it where it runs (Debug Adapter Protocol)."""
clusters = pytest.mark.parametrize(
    "cluster", ["lab", pytest.param("rack", marks=pytest.mark.smoke)]
)


@contextmanager
def serving(desk: Desk, cluster: str) -> Iterator[str]:
    words = ("--cluster", cluster, "--framework", "env", "--nodes", "2", "--gpus-per-node", "1")
    script = desk.write("serves.py", SERVES)
    job = desk.submit(*words, "--env", f"SERVED={SERVED}", script)["job_id"]
    try:
        for rank in range(2):
            wait_for_output(desk, job, f"stands {rank}")
        yield job
    finally:
        desk.clusterkit("cancel", job)


@clusters
def test_a_command_runs_as_a_process_of_the_job(desk: Desk, cluster: str) -> None:
    with serving(desk, cluster) as job:
        words = (
            "sh",
            "-c",
            'echo "$CK_NODE_NAME $SERVED $PWD $1"; cat; exit 7',
            "x",
            "it's  2 words",
        )
        done = desk.lab.run(
            "head",
            [sys.executable, "-m", "clusterkit", "exec", job, "--node", "1", "--", *words],
            cwd=desk.folder,
            env=desk.environment(),
            input="typed\n",
        )
        assert done.stdout == f"n2 {SERVED} {desk.folder} it's  2 words\ntyped\n", done.stderr
        assert done.returncode == 7
        named = desk.clusterkit("exec", job, "--node", "n2", "--", "sh", "-c", "echo $CK_NODE_RANK")
        assert (named.stdout, named.stderr) == ("1\n", "")
        for node in ("n2", "n[2]"):
            printed = desk.clusterkit("logs", job, "--node", node)
            assert printed.returncode == 0, printed.stderr
            assert "[node-" not in printed.stdout
        wrong = desk.clusterkit("logs", job, "--node", "n9")
        assert "--node n9: no such node of this job" in wrong.stderr

        everywhere = desk.clusterkit(
            "exec",
            job,
            "--all",
            "--json",
            "--",
            "sh",
            "-c",
            "echo $CK_NODE_NAME; exit $CK_NODE_RANK",
        )
        told = json.loads(everywhere.stdout)["nodes"]
        assert [(one["node"], one["exit_code"], one["output"]) for one in told] == [
            ("n1", 0, "n1\n"),
            ("n2", 1, "n2\n"),
        ]
        assert everywhere.returncode == 1

        wrong = desk.clusterkit("exec", job, "--node", "2", "--", "true")
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert "--node 2: no such node of this job" in wrong.stderr
    ended = desk.clusterkit("exec", job, "--", "true")
    assert ended.returncode == 2
    assert f"{job} has ended: cancelled" in ended.stderr


def forwarding(desk: Desk, job: str, port: str = SERVED) -> subprocess.Popen[str]:
    """Start a forward to the second node of a job that is `serving`."""
    return typed(desk, "forward", job, f"0:{port}", "--node", "1")


def typed(desk: Desk, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "clusterkit", *words]
    return desk.lab.popen("head", argv, cwd=desk.folder, env=desk.environment())


@contextmanager
def forwarded(desk: Desk, job: str, port: str) -> Iterator[str]:
    """Give the URL of a port of the second node, until Ctrl-C."""
    way = forwarding(desk, job, port)
    try:
        assert way.stdout is not None
        assert way.stderr is not None
        said = way.stdout.readline()
        assert f"is port {port} of n2" in said, way.stderr.read()
        yield said.split()[0]
    finally:
        os.killpg(way.pid, signal.SIGINT)
        way.wait(timeout=60)
    assert way.stderr.read() == ""


def fetched(desk: Desk, url: str) -> bytes:
    page = desk.lab.run("head", [sys.executable, "-c", FETCH, url], cwd=desk.folder)
    assert not page.returncode, page.stderr
    return bytes.fromhex(page.stdout)


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_a_port_of_a_node_is_one_of_this_machine(desk: Desk, cluster: str) -> None:
    """As of the job itself, so of what `exec` starts there: Jupyter, a debugger."""
    with serving(desk, cluster) as job:
        with forwarded(desk, job, SERVED) as url:
            assert fetched(desk, f"{url}/serves.py") == SERVES.encode()
            data = bytes(range(256)) * 300
            (desk.folder / "data").write_bytes(data)
            assert fetched(desk, f"{url}/data") == data
        if cluster == "lab":
            attach_and_fetch(desk, job)
    # What puts itself apart, as the adapter of debugpy does, ends with the job at the latest.
    await_true(lambda: not desk.lab.processes("n2", "debugpy"))


def attach_and_fetch(desk: Desk, job: str) -> None:
    """Debug a server that `exec` runs on the second node, and read what it serves then."""
    server = ("-m", "http.server", PAGES, "--bind", "127.0.0.1")
    debugged = ("-m", "debugpy", "--listen", f"127.0.0.1:{DEBUGGED}", "--wait-for-client", *server)

    def listens(port: str) -> bool:
        sockets = desk.lab.run("n2", ["cat", "/proc/net/tcp"], check=True).stdout
        return f"0100007F:{int(port):04X} 00000000:0000 0A" in sockets

    runs = typed(desk, "exec", job, "--node", "1", "--", sys.executable, *debugged)
    try:
        await_true(lambda: listens(DEBUGGED), 120)
        with forwarded(desk, job, DEBUGGED) as url:
            attach = [sys.executable, "-c", DEBUGS, url.rpartition(":")[2]]
            said = desk.lab.run("head", attach, cwd=desk.folder, timeout_s=200)
            assert said.stdout == "n2\n", said.stderr
        await_true(lambda: listens(PAGES), 120)
        with forwarded(desk, job, PAGES) as url:
            assert fetched(desk, f"{url}/serves.py") == SERVES.encode()
    finally:
        os.killpg(runs.pid, signal.SIGINT)
        runs.communicate(timeout=60)
    await_true(lambda: not desk.lab.processes("n2", "http[.]server"))


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_a_port_where_nobody_listens_is_told_before_anybody_connects(
    desk: Desk, cluster: str, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    with serving(desk, cluster) as job, said.open("wb") as stream:
        way = desk.lab.popen(
            "head",
            [sys.executable, "-m", "clusterkit", "forward", job, f"0:{UNSERVED}", "--node", "0"],
            cwd=desk.folder,
            env=desk.environment(),
            stdout=subprocess.DEVNULL,
            stderr=stream,
        )
        try:
            await_true(lambda: f"port {UNSERVED}: nothing listens there" in said.read_text())
        finally:
            os.killpg(way.pid, signal.SIGINT)
            way.wait(timeout=60)


FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().hex())"


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_a_forward_ends_once_the_job_has(desk: Desk, cluster: str) -> None:
    with serving(desk, cluster) as job:
        way = forwarding(desk, job)
        assert way.stdout is not None
        url = way.stdout.readline().split()[0]
    fetch = [sys.executable, "-c", FETCH, url]
    assert desk.lab.run("head", fetch, cwd=desk.folder).returncode != 0
    _, told = way.communicate(timeout=60)
    assert way.returncode == 2
    assert f"{job} has ended: cancelled" in told
    assert "cpu binding" not in told


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_a_shell_has_a_terminal_inside_the_job(desk: Desk, cluster: str) -> None:
    with serving(desk, cluster) as job:
        shell, master = desk.on_terminal("shell", job, "--node", "1")
        os.write(master, b"test -t 0 && echo at $CK_NODE_NAME $((6 * 7)); exit 3\n")
        try:
            shell.wait(timeout=120)
            printed = read_to_end(master).decode()
        finally:
            shell.kill()
        assert "at n2 42" in printed
        assert shell.returncode == 3


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_nothing_runs_on_once_the_client_has_gone(desk: Desk, cluster: str) -> None:
    with serving(desk, cluster) as job:
        mark = f"88{os.getpid() % 10_000}"
        client = typed(desk, "exec", job, "--", "sleep", mark)

        def runs() -> bool:
            return not subprocess.run(
                ["pgrep", "-fx", f"sleep {mark}"], stdout=subprocess.DEVNULL, check=False
            ).returncode

        await_true(runs)
        os.killpg(client.pid, signal.SIGTERM)
        client.wait(timeout=60)
        await_true(lambda: not runs())


def test_nodes_print_once_what_they_print_alike(desk: Desk) -> None:
    words = ("nodes", "run", "--cluster", "rack", "--", "sh", "-c")
    done = desk.clusterkit(*words, "echo same; test $(uname -n) != n2")
    told = done.stdout.splitlines()
    assert told[-2:] == ["n2  exit 1", "  same"], done.stdout
    assert told[1] == "  same"
    assert done.returncode == 1
    slow = desk.clusterkit("nodes", "run", "--cluster", "rack", "--timeout", "1", "sleep", "30")
    assert "it had not ended after 1 s" in slow.stderr
    assert slow.returncode == 1


def test_a_command_runs_on_the_free_nodes_of_slurm_without_a_job(desk: Desk) -> None:
    done = desk.clusterkit("nodes", "run", "--cluster", "lab", "--", "echo", "same")
    assert done.returncode == 0, done.stderr
    assert "no job of yours runs on lab: the command runs there in an" in done.stderr
    assert done.stdout.splitlines()[1:] == ["  same"]
    with serving(desk, "lab"):  # on two of the three
        done = desk.clusterkit("nodes", "run", "--cluster", "lab", "--", "echo", "same")
    assert done.returncode == 0, done.stderr
    assert "no job of yours runs on n3: the command runs there in an" in done.stderr
    assert done.stdout.splitlines() == ["n[1-3]", "  same"]
