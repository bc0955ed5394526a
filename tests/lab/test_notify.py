"""The nodes of a job tell people once that it has ended, also where its client has gone."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from clusterkit.core import files
from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers.lab_jobs import Cluster, await_true, one_process, started
from tests.lab import Lab

pytestmark = pytest.mark.lab

SERVER = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0

    def do_POST(self):
        Handler.asked += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(500 if Handler.asked == 1 else 204)
        self.end_headers()
        with open(sys.argv[1], "ab") as kept:
            kept.write(body + b"\\n" if Handler.asked > 1 else b"")

server = http.server.HTTPServer(("", 0), Handler)
server.timeout = 120
print(server.server_port, flush=True)
server.handle_request()
server.handle_request()
"""
LOST = ("failed 0 n1 no longer answers", "failed 0 n1 has lost the process that kept it")
FAILS = "sleep 2; exit $((7 * (CK_NODE_RANK == 1)))"


@pytest.fixture(params=["slurm", "ssh"])
def cluster(lab: Lab, tmp_path: Path, request: pytest.FixtureRequest) -> Cluster:
    return Cluster(lab, tmp_path, kind=request.param)


def ways(folder: Path) -> dict[str, list[str]]:
    """Return options by which a line is written for each telling."""
    return {
        key: [f"run sh -c 'echo \"$*\" >>{folder}/{key}' sh {{state}} {{attempt}} {{reason}}"]
        for key in ("on_end", "on_failure", "on_hang")
    }


def told(folder: Path, key: str = "on_end") -> list[str]:
    path = folder / key
    return path.read_text().splitlines() if path.exists() else []


def once(cluster: Cluster, run: RunFolder, timeout_s: float = 90) -> str:
    """Return what was told, when nothing of the job is left and there was time for more."""
    await_true(lambda: bool(told(cluster.folder)), timeout_s)
    await_true(lambda: not cluster.left(run), timeout_s)
    time.sleep(1)
    (line,) = told(cluster.folder)
    return line


def test_a_job_that_fails_is_told_of_once_without_a_client(cluster: Cluster) -> None:
    """By a webhook that answers 500 first, and whose address is in a file."""
    kept, posted = cluster.folder / "hook-url", cluster.folder / "posted"
    options = ways(cluster.folder)
    options["on_failure"].append(f"webhook {kept}")
    argv = [sys.executable, "-c", SERVER, str(posted)]
    with cluster.lab.popen("head", argv) as server:
        try:
            assert server.stdout is not None
            kept.write_text(f"http://head:{int(server.stdout.readline())}/T0/secret-path\n")
            kept.chmod(0o600)
            run = cluster.submit(FAILS, **options)
            assert once(cluster, run) == "failed 0 n2 exited with 7"
            assert told(cluster.folder, "on_failure") == ["failed 0 n2 exited with 7"]
            await_true(lambda: "told" in (files.read_json(run.notified) or {}))
            line = f"webhook {kept}: sent"
            assert line in (files.read_json(run.notified) or {})["told"], run.notified.read_text()
        finally:
            server.kill()
    (document,) = (files.parse_json(line) for line in posted.read_bytes().splitlines())
    assert document is not None
    assert (document["state"], document["exit_code"]) == ("failed", 7)
    code, shown = cluster.ck("status", run.run_id)
    assert code == 1
    assert f"told       {line}" in shown
    for path in (path for path in run.path.rglob("*") if path.is_file()):
        assert b"secret-path" not in path.read_bytes()


def test_a_hang_is_told_of_before_the_job_is_ended_because_of_it(cluster: Cluster) -> None:
    options = ways(cluster.folder)
    options["on_hang"].insert(0, "cancel")
    body = "for k in 1 2 3 4; do echo step $k; sleep 0.2; done; sleep 300"
    run = cluster.submit(body, hang_after=3, **options)
    why = r"it hangs: no step for \d+ s, after step 4"
    assert re.fullmatch(f"failed 0 {why}", once(cluster, run))
    (line,) = told(cluster.folder, "on_hang")
    assert re.fullmatch(f"running 0 {why}", line)
    at = {key: (cluster.folder / key).stat().st_mtime for key in ("on_hang", "on_end")}
    assert at["on_hang"] < at["on_end"]


def test_one_that_ends_well_is_no_failure(cluster: Cluster) -> None:
    run = cluster.submit("sleep $CK_NODE_RANK", **ways(cluster.folder))
    assert once(cluster, run) == "succeeded 0 "
    assert told(cluster.folder, "on_failure") == []


def test_one_that_is_cancelled_is_no_failure(cluster: Cluster) -> None:
    run = cluster.submit("echo; sleep 300", **ways(cluster.folder))
    await_true(started(run))
    assert cluster.ck("cancel", run.run_id)[0] == 0
    assert once(cluster, run) == "cancelled 0 "
    assert told(cluster.folder, "on_failure") == []


def test_one_that_starts_again_has_not_ended(cluster: Cluster) -> None:
    body = "sleep 1; ((CK_RESTART_COUNT)) || exit $((7 * (CK_NODE_RANK == 1)))"
    run = cluster.submit(body, requeue=2, requeue_on="failure", **ways(cluster.folder))
    assert cluster.ck("wait", run.run_id)[0] == 0
    assert once(cluster, run) == "succeeded 1 "
    assert told(cluster.folder, "on_failure") == []


def test_where_the_first_node_is_lost_another_one_tells(lab: Lab, tmp_path: Path) -> None:
    cluster = Cluster(lab, tmp_path, kind="ssh")
    run = cluster.submit("echo; sleep 300", **ways(cluster.folder))
    await_true(started(run))
    agent = one_process(lab, "n1", f"ssh[.]agent .*{run.run_id}")
    os.kill(agent.pid, signal.SIGKILL)
    assert once(cluster, run) in LOST
