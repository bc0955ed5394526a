"""Notices of a cloud that it takes a machine: what its metadata service says, or does not."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from clusterkit.core import metadata
from clusterkit.core.model import ClusterKind
from clusterkit.executors.node import notices
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.node.watch import Timeouts, Watch
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission

SIGNS = {
    "aws": ("sys_vendor", "Amazon EC2"),
    "gcp": ("product_name", "Google Compute Engine"),
    "azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
}
TOKEN = "/latest/api/token"
ACTION = "/latest/meta-data/spot/instance-action"
MAINTENANCE = "/latest/meta-data/events/maintenance/scheduled"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
EVENT = "/computeMetadata/v1/instance/maintenance-event"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-12-13&format=text"


class Service(BaseHTTPRequestHandler):
    """A metadata service that says what `texts` hold, to those who ask as its cloud wants."""

    texts: dict[str, str]
    asked: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.asked.append((self.command, self.path))
        theirs = {
            "/latest/meta-data": ("X-aws-ec2-metadata-token", "the-token"),
            "/computeMetadata": ("Metadata-Flavor", "Google"),
            "/metadata": ("Metadata", "true"),
        }
        wanted = next((w for at, w in theirs.items() if self.path.startswith(at)), None)
        allowed = wanted is None or self.headers[wanted[0]] == wanted[1]
        text = self.texts.get(self.path) if allowed else None
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "<html>not found</html>").encode())

    do_PUT = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Service]]:
    handler = type("Handler", (Service,), {"texts": {}, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(metadata, "ADDRESS", server.server_address)
        yield handler
        server.shutdown()


def on(root: Path, cloud: str) -> Path:
    """Let the machine with these files be one of a cloud."""
    file, says = SIGNS[cloud]
    folder = root / "sys/class/dmi/id"
    folder.mkdir(parents=True)
    (folder / file).write_text(f"{says}\n")
    return root


def told(root: Path, cloud: str) -> tuple[str, float] | None:
    assert notices.announcing_cloud(on(root, cloud)) == cloud
    return notices.look(cloud)


def in_words(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def event(kind: str, before: str, *names: str, status: str = "Scheduled") -> dict[str, object]:
    return {
        "EventId": "A1", "EventType": kind, "ResourceType": "VirtualMachine",
        "Resources": names, "EventStatus": status, "NotBefore": before,
    }  # fmt: skip


def test_aws_says_when_it_takes_a_spot_instance(service: type[Service], tmp_path: Path) -> None:
    soon, sooner = int(time.time()) + 110, int(time.time()) + 60
    service.texts = {
        TOKEN: "the-token",
        ACTION: json.dumps({"action": "stop", "time": in_words(soon)}),
    }
    assert told(tmp_path, "aws") == ("AWS takes back the Spot instance", soon)
    assert service.asked == [("PUT", TOKEN), ("GET", ACTION), ("GET", MAINTENANCE)]
    service.texts[MAINTENANCE] = json.dumps([
        {"Code": "system-reboot", "State": "active", "NotBefore": in_words(sooner)},
        {"Code": "instance-stop", "State": "completed", "NotBefore": in_words(sooner)},
    ])  # fmt: skip
    assert notices.look("aws") == ("AWS plans system-reboot", sooner)
    service.texts[ACTION] = json.dumps({"action": "stop"})
    assert notices.look("aws") is None


def test_gcp_says_that_it_takes_a_vm_now(service: type[Service], tmp_path: Path) -> None:
    service.texts = {PREEMPTED: "FALSE\n"}
    assert told(tmp_path, "gcp") is None
    for texts in ({PREEMPTED: "TRUE\n"}, {EVENT: "TERMINATE_ON_HOST_MAINTENANCE\n"}):
        service.texts = texts
        before = time.time()
        found = notices.look("gcp")
        assert found is not None
        assert before + 30 <= found[1] <= time.time() + 30
    service.texts = {PREEMPTED: "FALSE", EVENT: "MIGRATE_ON_HOST_MAINTENANCE"}
    assert notices.look("gcp") is None


def test_azure_names_the_machines_that_it_takes(service: type[Service], tmp_path: Path) -> None:
    first, second = int(time.time()) + 50, int(time.time()) + 100
    soon = format_datetime(datetime.fromtimestamp(first, tz=UTC), usegmt=True)
    events = [
        event("Freeze", soon, "gpu_3"),
        event("Preempt", soon, "gpu_4"),
        event("Reboot", format_datetime(datetime.fromtimestamp(second, tz=UTC)), "gpu_3"),
    ]
    service.texts = {NAME: "gpu_3", EVENTS: json.dumps({"Events": events})}
    assert told(tmp_path / "a", "azure") == ("Azure announces Reboot", second)
    events.append(event("Preempt", soon, "gpu_2", "gpu_3"))
    service.texts[EVENTS] = json.dumps({"Events": events})
    assert notices.look("azure") == ("Azure announces Preempt", first)
    events = [event("Terminate", "", "gpu_3", status="Started")]
    service.texts[EVENTS] = json.dumps({"Events": events})
    before = time.time()
    found = notices.look("azure")
    assert found is not None
    assert before <= found[1] <= time.time()


@pytest.mark.parametrize("cloud", SIGNS)
@pytest.mark.parametrize(
    "text",
    [
        "", "<html>sign in</html>", "[" * 100_000, "null", "[1]", '"TRUE"', "TRUE" * 20_000,
        '{"time": 5, "Events": {"0": 1}}', '{"time": "tomorrow", "Events": [1, {}, null]}',
        '{"time": "9999-12-31T23:59:59-24:00", "Events": [{"EventType": "Preempt"}]}',
        '{"Events": [{"EventType": "Preempt", "NotBefore": "now", "Resources": "gpu_3"}]}',
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_no_notice(
    service: type[Service], tmp_path: Path, cloud: str, text: str
) -> None:
    service.texts = dict.fromkeys((ACTION, MAINTENANCE, PREEMPTED, EVENT, EVENTS, NAME), text)
    service.texts[TOKEN] = "the-token"
    assert told(tmp_path, cloud) is None


@pytest.mark.parametrize("cloud", SIGNS)
def test_a_service_that_is_silent_or_gone_is_no_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(metadata, "ADDRESS", silent.getsockname())
        monkeypatch.setattr(metadata, "ANSWER_S", 0.1)
        assert told(tmp_path / "silent", cloud) is None
    assert told(tmp_path / "gone", cloud) is None


def test_a_machine_of_no_cloud_asks_nobody(tmp_path: Path) -> None:
    assert notices.announcing_cloud(tmp_path) is None
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/sys_vendor").write_text("Dell Inc.\n")
    assert notices.announcing_cloud(tmp_path) is None


def test_the_notice_of_a_node_is_heard_by_the_others_and_a_later_one_is_none_yet(
    service: type[Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERKIT_MACHINE_ROOT", str(on(tmp_path, "aws")))
    monkeypatch.setattr(notices, "_POLL_S", 0.05)
    run = RunFolder(tmp_path)
    service.texts = {TOKEN: "the-token", ACTION: json.dumps({"time": in_words(time.time() + 1e6)})}
    me = Identity(job_id="7", attempt=2, rank=1, of=2, name="n2", among=("n1", "n2"))
    assert notices.begin(run, me)
    for long_over in (False, True):
        if long_over:
            service.texts[ACTION] = json.dumps({"time": in_words(time.time() - 1e6)})
        there = len(service.asked)
        while len(service.asked) < there + 8:
            time.sleep(0.01)
        assert notices.read_notice(run, 2) is None
    at = int(time.time()) + 100
    service.texts[ACTION] = json.dumps({"time": in_words(at)})
    while (found := notices.read_notice(run, 2)) is None:
        time.sleep(0.01)
    assert (found.node, found.what, found.at) == ("n2", "AWS takes back the Spot instance", at)
    assert notices.read_notice(run, 1) is None


def test_a_machine_that_goes_before_the_time_limit_gives_the_job_back_before_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was planned for the limit; nothing is, once the command is being ended."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    run = RunFolder(tmp_path)
    submission = Submission(
        run_id="r", name="toy", cluster="c", kind=ClusterKind.SLURM, framework="torchrun", nodes=1,
        tasks=1, submitted_at=time.time(), requeue=1, notice_s=600,
    )  # fmt: skip
    runfolder.write_submission(run, submission)
    me = Identity(job_id="7", attempt=0, rank=0, of=1, name="n1", among=("n1",))
    watch = Watch(timeouts=Timeouts(), run=run, me=me, pid=-1, spared=set(), heeds_cloud=True)
    watch.again_at = time.monotonic() + 400
    notice = {"node": "n1", "what": "AWS takes back the Spot instance", "at": time.time() + 60}
    run.notice(0).write_text(json.dumps(notice))
    watch.kill_at = time.monotonic() + 600
    watch._keep_time()
    assert not watch.noticed
    watch.kill_at = None
    watch._keep_time()
    assert watch.noticed
    assert watch.again_at - time.monotonic() == pytest.approx(40, abs=10)
