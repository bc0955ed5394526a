"""Faults of the practice cluster's network, each named with the right node or link."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from clusterkit.core.findings import Verdict
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.checks.base import Check
from clusterkit.preflight.evaluate import evaluate
from clusterkit.preflight.network import with_network
from clusterkit.preflight.probes.net import allreduce as allreduce_probe
from clusterkit.preflight.probes.net import links
from clusterkit.preflight.report import Report
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import PreflightJob, Reach
from tests.helpers.lab_faults import filtered, shaped
from tests.helpers.net_lab import LabTransport
from tests.helpers.probe_run import named
from tests.lab import Lab

pytestmark = pytest.mark.lab

PORT = 20770
LINKS = (named("net-rendezvous"), named("net-reach"), named("net-latency"), named("net-bandwidth"))
ALL_REDUCES = (named("net-allreduce"), named("net-busbw"))


def preflight(lab: Lab, *checks: Check) -> Report:
    """Run the network stages on all nodes and judge them."""
    replies = tuple(Reply(node=node, reach=Reach()) for node in lab.nodes)
    job = PreflightJob(hosts=lab.nodes, python=sys.executable, port=PORT)
    bundle = Bundle(job=job, replies=replies, collected_at=0.0, seconds=0.0)
    return evaluate(with_network(bundle, LabTransport(lab), checks), checks)


def said(report: Report, verdict: Verdict) -> list[tuple[str, tuple[str, ...], str]]:
    """Return id, nodes and summary of the findings with a verdict."""
    found = [finding for finding in report.findings if finding.verdict is verdict]
    return [(finding.id, tuple(sorted(finding.nodes)), finding.summary) for finding in found]


def test_a_healthy_network_passes(lab: Lab) -> None:
    with shaped(lab, "100mbit", slow={}):
        report = preflight(lab, *LINKS, *ALL_REDUCES)
    assert report.bad == (), report.bad
    passed = {finding.id for finding in report.findings if finding.verdict is Verdict.PASS}
    assert passed == {"NET001", "NET002", "NET003", "NET004", "NET005", "NET006"}


def test_one_slow_link_is_named(lab: Lab) -> None:
    with shaped(lab, "100mbit", slow={("n1", "n3"): "20mbit"}):
        report = preflight(lab, *LINKS)
    assert [(id_, nodes) for id_, nodes, _ in said(report, Verdict.FAIL)] == [
        ("NET003", ("n1", "n3"))
    ]
    finding = report.bad[0]
    assert "between n1 and n3" in finding.summary
    assert "n1 to n3" in finding.evidence
    assert "n3 to n1" not in finding.evidence


def test_one_slow_node_is_named(lab: Lab) -> None:
    with shaped(lab, "100mbit", slow={}):
        change = "tc class change dev eth0 classid 1:1 htb rate 20mbit quantum 6000"
        lab.run("n2", change.split(), check=True)
        report = preflight(lab, *LINKS)
    assert said(report, Verdict.FAIL) == [
        ("NET003", ("n2",), "bandwidth from n2 is low with most other nodes")
    ]


def test_a_firewall_on_the_head_names_the_head(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "WINDOW_S", 20.0)
    drop = f"ip daddr {lab.layout.address('n1')} tcp dport {PORT} drop"
    with shaped(lab, "100mbit", slow={}), filtered(lab, "n1", drop):
        report = preflight(lab, named("net-rendezvous"))
    assert [finding.nodes for finding in report.bad] == [("n1",)]
    assert "no answer" in report.bad[0].evidence


def test_a_firewall_against_one_node_names_that_node(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "WINDOW_S", 20.0)
    reject = f"ip saddr {lab.layout.address('n3')} tcp dport {PORT} reject with tcp reset"
    with shaped(lab, "100mbit", slow={}), filtered(lab, "n1", reject):
        report = preflight(lab, named("net-rendezvous"))
    assert [finding.nodes for finding in report.bad] == [("n3",)]
    assert "refused" in report.bad[0].evidence


def test_a_port_in_use_on_the_head_is_told(lab: Lab) -> None:
    squat = (
        f"import socket, time; s = socket.create_server(('', {PORT}));"
        " print('listens', flush=True); time.sleep(300)"
    )
    squatting = lab.popen("n1", [sys.executable, "-c", squat])
    with shaped(lab, "100mbit", slow={}), squatting as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "listens\n"
        try:
            report = preflight(lab, *LINKS)
        finally:
            os.killpg(squatter.pid, signal.SIGKILL)
    assert report.bad == (), report.bad
    told = ("NET001", ("n1",), f"port {PORT}, the first of `port_range`, is in use")
    assert told in said(report, Verdict.WARN)


def test_a_node_whose_program_dies_half_way_is_named(lab: Lab) -> None:
    def kill() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            # The shells around it hold the program's text in their arguments as well.
            for process in lab.processes("n2", r"(?s)^\S*python\S* -c .*ck-net"):
                # It has said that it began, and the rounds are still to come.
                if connected(process.pid):
                    os.kill(process.pid, signal.SIGKILL)
                    return
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    report = preflight(lab, named("net-reach"))
    killer.join()
    assert said(report, Verdict.FAIL) == [
        ("NET002", ("n2",), "stopped answering while data was flowing")
    ]


def connected(pid: int) -> bool:
    """Tell whether a process's machine has an open connection at the rendezvous port."""
    with suppress(FileNotFoundError):
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
        # Local and remote address end in the port; 01 is ESTABLISHED (proc(5)).
        return any(re.search(rf":{PORT:04X} .*? 01 ", table) for table in tables)
    return False


def test_a_bad_all_reduce_is_told_from_its_partner(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Importing torch may take long on a busy machine. What hangs takes none of that time.
    monkeypatch.setitem(allreduce_probe._MEET_S, "gloo", 90.0)
    # Gloo's data ports are its own; the rendezvous port stays open.
    with filtered(lab, "n2", f"tcp dport != {PORT}-{PORT + 4} ct state new drop"):
        report = preflight(lab, named("net-allreduce"))
    assert [finding.nodes for finding in report.bad] == [("n2",)]


def test_without_torch_the_all_reduce_is_skipped(lab: Lab) -> None:
    replies = tuple(Reply(node=node, reach=Reach()) for node in lab.nodes)
    job = PreflightJob(hosts=lab.nodes, python="/usr/bin/python3", port=PORT)
    bundle = Bundle(job=job, replies=replies, collected_at=0.0, seconds=0.0)
    bare = ["/usr/bin/python3", "-c", "import torch"]
    if subprocess.run(bare, check=False, capture_output=True).returncode == 0:
        pytest.skip("this machine's own Python has torch")
    report = evaluate(with_network(bundle, LabTransport(lab), ALL_REDUCES), ALL_REDUCES)
    assert {finding.verdict for finding in report.findings} == {Verdict.SKIP}
