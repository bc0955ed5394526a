"""People are told once that a job has ended, and whatever answers them ends nothing."""

from __future__ import annotations

import dataclasses
import http.server
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import files
from clusterkit.core.model import ClusterKind, JobState, OnHang
from clusterkit.executors.node import notify as notify_module
from clusterkit.executors.node.notify import Ending, notify
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission

JOB = Submission(
    run_id="toy-20261127-101500-4f06f8", name="toy", cluster="rack", kind=ClusterKind.SLURM,
    framework="torchrun", nodes=2, tasks=2, submitted_at=5.0, job_id="4711",
)  # fmt: skip
FAILED = Ending(
    state=JobState.FAILED, reason="n2: rank 3 <b>\nexited & left", exit_code=1, attempt=0, node="n1"
)
WELL = Ending(state=JobState.SUCCEEDED, reason=None, exit_code=0, attempt=0, node="n1")
SECRET = "T0000/B0000/held-back"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / JOB.run_id)
    run.logs.mkdir(parents=True)
    runfolder.write_submission(run, JOB)
    return run


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify_module, "_TRY_S", 60.0)
    monkeypatch.setattr(notify_module, "_ALL_S", 100.0)
    monkeypatch.setattr(notify_module, "_AGAIN_AFTER_S", (0.05, 0.1))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


class Server:
    """A web server on the loopback that does as it is told, and keeps what it is posted."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, Any]] = []
        self.does: Callable[[http.server.BaseHTTPRequestHandler, int], None] = answers(200)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.posted.append((self.path, json.loads(body)))
                outer.does(self, len(outer.posted))

            def do_GET(self) -> None:
                outer.posted.append((self.path, "GET"))

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def answers(*codes: int) -> Callable[[http.server.BaseHTTPRequestHandler, int], None]:
    def answer(handler: http.server.BaseHTTPRequestHandler, number: int) -> None:
        handler.send_response(codes[min(number, len(codes)) - 1])
        handler.send_header("Location", "/elsewhere")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def is_silent(_: http.server.BaseHTTPRequestHandler, __: int) -> None:
    time.sleep(300)


def never_ends(handler: http.server.BaseHTTPRequestHandler, _: int) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b"x" * 65536)
    except OSError:
        pass


def never_ends_its_head(handler: http.server.BaseHTTPRequestHandler, _: int) -> None:
    handler.wfile.write(b"HTTP/1.0 200 OK\r\n")
    try:
        while True:
            handler.wfile.write(b"X-More: and more\r\n")
    except OSError:
        pass


def drips(handler: http.server.BaseHTTPRequestHandler, _: int) -> None:
    try:
        while True:  # until the other side has had enough
            handler.wfile.write(b"H")
            handler.wfile.flush()
            time.sleep(0.2)
    except OSError:
        pass


def makes_no_sense(handler: http.server.BaseHTTPRequestHandler, _: int) -> None:
    handler.wfile.write(b"\x00\xff\r\n\r\n")


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()
    yield served
    served.server.shutdown()
    served.server.server_close()


def tell(run: RunFolder, ending: Ending = FAILED, **ways: list[str]) -> list[str]:
    files.write_json(run.plan, ways)
    notify(run, JOB, ending, run.log(0))
    told = (files.read_json(run.notified) or {}).get("told")
    return told if isinstance(told, list) else []


def test_a_webhook_is_posted_what_is_known_of_the_job_once(
    run: RunFolder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", f"{server.url}/{SECRET}")
    assert tell(run, on_failure=["webhook HOOK"]) == ["webhook HOOK: sent"]
    assert tell(run, on_failure=["webhook HOOK"]) == ["webhook HOOK: sent"]
    ((path, document),) = server.posted
    assert path == f"/{SECRET}"
    ended_at = document.pop("ended_at")
    assert abs(ended_at - time.time()) < 60
    assert document == {
        "schema": 1,
        "event": "failure",
        "job_id": "4711",
        "run_id": JOB.run_id,
        "name": "toy",
        "cluster": "rack",
        "state": "failed",
        "exit_code": 1,
        "reason": "n2: rank 3 <b> exited & left",
        "attempt": 0,
        "node": "n1",
        "submitted_at": 5.0,
        "run_dir": str(run.path),
    }
    assert run.log(0).read_text() == "clusterkit: n1: webhook HOOK: sent\n"


def test_slack_gets_a_text_and_its_address_stands_in_a_file(
    run: RunFolder, server: Server, tmp_path: Path
) -> None:
    kept = tmp_path / "slack-url"
    kept.write_text(f"{server.url}/{SECRET}\n")
    kept.chmod(0o600)
    assert tell(run, on_end=[f"slack {kept}"]) == [f"slack {kept}: sent"]
    ((_, document),) = server.posted
    assert document["text"].splitlines() == [
        "toy (4711 on rack): failed: n2: rank 3 &lt;b&gt; exited &amp; left",
        str(run.path),
        "clusterkit diagnose 4711",
    ]


@pytest.mark.parametrize(
    ("does", "told", "tries"),
    [
        (answers(204), "sent", 1),
        (answers(500), "failed: it answered 500 (3 tries)", 3),
        (answers(503, 429, 200), "sent", 3),
        (answers(404), "failed: it answered 404", 1),
        (answers(302), "failed: it answered 302, and is not followed", 1),
        (answers(307), "failed: it answered 307, and is not followed", 1),
        (is_silent, "failed: no answer in 1 s (3 tries)", 3),
        (never_ends, "sent", 1),
        (never_ends_its_head, "failed: no answer by the rules of HTTP (HTTPException)", 1),
        (makes_no_sense, "failed: no answer by the rules of HTTP (BadStatusLine)", 1),
    ],
)
def test_what_a_server_answers_is_told_and_ends_nothing(
    run: RunFolder,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    does: Any,
    told: str,
    tries: int,
) -> None:
    """Neither the address nor what the server says reaches the run folder."""
    monkeypatch.setenv("HOOK", f"{server.url}/{SECRET}")
    server.does = does
    if does is is_silent:
        monkeypatch.setattr(notify_module, "_TRY_S", 1.0)
    assert tell(run, on_failure=["webhook HOOK"]) == [f"webhook HOOK: {told}"]
    while len(server.posted) < tries:  # one that was given up may not be read yet
        time.sleep(0.01)
    assert [path for path, _ in server.posted] == [f"/{SECRET}"] * tries
    for path in (path for path in run.path.rglob("*") if path.is_file()):
        assert SECRET not in path.read_text()


def test_one_that_answers_in_drips_holds_nobody_up(
    run: RunFolder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify_module, "_ALL_S", 15.0)
    server.does = drips
    ways = [f"webhook {server.url}/x", "run true"]
    assert tell(run, on_failure=ways) == [
        f"webhook {server.url}: no answer in 15 s",
        "run true: sent",
    ]


def test_where_nobody_listens_it_is_tried_again(run: RunFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (told,) = tell(run, on_failure=[f"webhook http://127.0.0.1:{port}/secret-path"])
    assert told == f"webhook http://127.0.0.1:{port}: failed: Connection refused (3 tries)"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "HOOK is not set on n1"),
        ("file:///etc/passwd", "HOOK holds no address that begins with http:// or https://"),
        ("http://user:pass@h/", "HOOK holds no address that begins with http:// or https://"),
        ("http://h/\r\nX: y", "HOOK holds no address that begins with http:// or https://"),
    ],
)
def test_a_secret_that_is_no_address_is_told_without_its_value(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, value: str | None, told: str
) -> None:
    monkeypatch.delenv("HOOK", raising=False)
    if value is not None:
        monkeypatch.setenv("HOOK", value)
    assert tell(run, on_failure=["slack HOOK"]) == [f"slack HOOK: failed: {told}"]


def test_a_file_that_others_can_write_names_no_address(
    run: RunFolder, server: Server, tmp_path: Path
) -> None:
    kept = tmp_path / "slack-url"
    kept.write_text(server.url)
    kept.chmod(0o666)
    (told,) = tell(run, on_failure=[f"slack {kept}", f"webhook {tmp_path}/none"])[:1]
    assert "can be written by everybody" in told
    assert (files.read_json(run.notified) or {})["told"][1].endswith("No such file or directory")
    assert server.posted == []


def sendmail(folder: Path, program: str) -> str:
    folder.mkdir(exist_ok=True)
    stand_in = folder / "sendmail"
    stand_in.write_text(f"#!/bin/sh\n{program}\n")
    stand_in.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_mail_goes_by_the_sendmail_of_the_site(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sendmail(tmp_path / "bin", f'echo "$@" >{tmp_path}/words; cat >{tmp_path}/mail')
    monkeypatch.setenv("PATH", path)
    odd = Ending(
        state=JobState.FAILED, reason="näh\r\nBcc: all@example.org", exit_code=1, attempt=0,
        node="n1",
    )  # fmt: skip
    assert tell(run, odd, on_failure=["mail me@example.org"]) == ["mail me@example.org: sent"]
    assert (tmp_path / "words").read_text() == "-i -- me@example.org\n"
    head, _, body = (tmp_path / "mail").read_text().partition("\n\n")
    assert head.splitlines()[:2] == [
        "To: me@example.org",
        "Subject: toy (4711 on rack): failed: n?h Bcc: all@example.org",
    ]
    assert not [line for line in head.splitlines() if line.startswith("Bcc")]
    assert body.startswith("toy (4711 on rack): failed: näh Bcc: all@example.org\n")


def test_a_subject_is_ascii_however_long_the_reason(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", sendmail(tmp_path / "bin", f"cat >{tmp_path}/mail"))
    long = Ending(state=JobState.FAILED, reason="x" * 5000, exit_code=1, attempt=0, node="n1")
    tell(run, long, on_failure=["mail me"])
    head = (tmp_path / "mail").read_bytes().partition(b"\n\n")[0]
    assert head.isascii()
    assert max(map(len, head.splitlines())) < 998


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("echo queue is full >&2; exit 75", "failed: queue is full (3 tries)"),
        ("exit 67", "failed: exit code 67"),
        ("exec sleep 300", "no answer in 15 s"),
    ],
)
def test_what_a_mailer_answers_is_told(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, told: str
) -> None:
    monkeypatch.setattr(notify_module, "_ALL_S", 15.0)
    monkeypatch.setenv("PATH", sendmail(tmp_path / "bin", program))
    (line,) = tell(run, on_failure=["mail me@example.org"])
    assert told in line


def test_a_command_is_run_without_a_shell(run: RunFolder, tmp_path: Path) -> None:
    script = f'printf "%s\\n" "$@" >{tmp_path}/said'
    words = f"run sh -c '{script}' sh {{state}} {{reason}} {{other}}"
    assert tell(run, on_failure=[words]) == ["run sh: sent"]
    said = (tmp_path / "said").read_text()
    assert said == "failed\nn2: rank 3 <b> exited & left\n{other}\n"


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (JobState.SUCCEEDED, 1), (JobState.CANCELLED, 1),
        (JobState.FAILED, 2), (JobState.TIMEOUT, 2), (JobState.PREEMPTED, 2),
    ],
)  # fmt: skip
def test_a_failure_is_an_end_too(run: RunFolder, state: JobState, told: int) -> None:
    ending = Ending(state=state, reason=None, exit_code=0, attempt=0, node="n1")
    ways = {"on_end": ["run true", "nonsense of a later release"], "on_failure": ["run false"]}
    assert len(tell(run, ending, **ways)) == told


def test_a_hang_is_told_once_an_attempt_and_the_end_besides(run: RunFolder, server: Server) -> None:
    ways = {"on_failure": [f"webhook {server.url}/f"], "on_end": [f"webhook {server.url}/e"]}
    hangs = dataclasses.replace(FAILED, state=JobState.RUNNING, reason="it hangs", exit_code=None)
    files.write_json(run.plan, ways)
    for ending in (hangs, hangs, dataclasses.replace(hangs, attempt=1)):
        notify(run, JOB, ending, run.log(0))
    assert [path for path, _ in server.posted] == ["/f", "/f"]
    about = server.posted[0][1]
    assert (about["event"], about["state"], about["ended_at"]) == ("hang", "running", None)
    assert "it hangs" in about["reason"]
    tell(run, **ways)
    assert {path for path, _ in server.posted[2:]} == {"/e", "/f"}


@pytest.mark.parametrize("action", OnHang)
def test_a_hang_is_told_those_of_its_own_whatever_is_done_about_it(
    run: RunFolder, server: Server, action: OnHang
) -> None:
    ways = {f"on_{key}": [f"webhook {server.url}/{key}"] for key in ("failure", "end")}
    hangs = dataclasses.replace(FAILED, state=JobState.RUNNING)
    job = dataclasses.replace(JOB, on_hang=action)
    own = {"on_hang_tell": [f"webhook {server.url}/hang"]}
    for attempt, plan in enumerate((ways, ways | own)):
        files.write_json(run.plan, plan)
        notify(run, job, dataclasses.replace(hangs, attempt=attempt), run.log(0))
    only_reported = ["/failure"] * (action is OnHang.REPORT)
    assert [path for path, _ in server.posted] == [*only_reported, "/hang"]


def test_the_plan_of_somebody_else_runs_nothing(run: RunFolder, tmp_path: Path) -> None:
    files.write_json(run.plan, {"on_end": [f"run touch {tmp_path}/ran"]})
    run.plan.chmod(0o666)
    notify(run, JOB, WELL, run.log(0))
    assert not (tmp_path / "ran").exists()
    assert not run.notified.exists()


def test_a_folder_that_is_gone_or_full_is_no_reason_to_fail(run: RunFolder) -> None:
    files.write_json(run.plan, {"on_end": ["run true"]})
    run.logs.rmdir()
    notify(run, JOB, WELL, run.log(0))
    assert (files.read_json(run.notified) or {})["state"] == "succeeded"
