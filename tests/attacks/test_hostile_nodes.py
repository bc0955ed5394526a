"""Hostile nodes beside a healthy one: each ends in time, is named, and takes nobody's answers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterkit.core.errors import RemoteError
from clusterkit.images.archive import ImageFacts
from clusterkit.images.distribute import EngineFacts, look
from clusterkit.observe.diagnose.stacks import fold_stacks
from clusterkit.transport.probe import PreflightJob, Probe, ReachProblem
from clusterkit.transport.script import compose, new_token
from clusterkit.transport.srun import StepReader
from clusterkit.transport.ssh.config import SshOptions
from clusterkit.transport.ssh.session import on_nodes
from clusterkit.transport.ssh.transport import SshTransport
from clusterkit.transport.sync.helper import Helper
from tests.attacks.nodes import HEALTHY, LISTENERS, PLAIN, PROGRAMS, SLOW, Farm, Ran, farm

MOST_MIB = 300
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
QUICK = [HEALTHY, "flood", "lines", "stderr", "banner", "packet"]
"""Those that do not wait for an end of their input, which a conversation has not."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with farm(tmp_path_factory.mktemp("farm")) as one:
        yield one


SPEAKS = """\
import os, re, sys
seen = b""
while not (found := re.search(rb"(ck[0-9a-f]{16})\\n", seen)):
    seen += os.read(0, 65536)
os.write(1, b"\\n" + found[1] + b"\\n")
while seen := os.read(0, 65536):
    os.write(1, 3 * (ANSWER + b"\\n"))
"""
"""Begins as our program on a node does, and gives each request the same answer."""
HONEST = {
    "python": [3, 12, 1],
    "place": "/p",
    "text": None,
    "full": False,
    "missing": [],
    "free": 10**12,
    "code": 0,
    "said": "1",
    "wanted": [],
    "folder": "/p",
}
LIES: tuple[dict[str, object], ...] = (
    {"python": "3.12"},
    {"python": [10**40, "x"]},
    {"python": [3]},
    {"free": "much"},
    {"free": -1},
    {"free": float("inf")},
    {"text": "[" * 90_000, "full": True, "missing": 7},
    {"code": "0"},
    {"code": 10**30, "said": {"a": 1}},
    {"said": "\x1b[2J" * 100_000, "code": 1},
    {"wanted": [-1]},
    {"wanted": [1 << 70]},
    {"folder": 5},
    {"place": None},
)
ANSWERS: dict[str, bytes] = {
    "list": b"[1, 2]",
    "deep": b'{"a":' * 5000,
    "digits": b'{"python": ' + b"9" * 5000 + b"}",
    "empty": b"{}",
    "error": b'{"error": "\\u001b]0;owned\\u0007 no \\ud800 \\u202e"}',
}
ANSWERS |= {
    f"lies{number}": json.dumps({**HONEST, **lie}).encode() for number, lie in enumerate(LIES)
}


def test_prepare_believes_no_lie(tmp_path: Path) -> None:
    programs = {name: SPEAKS.replace("ANSWER", repr(answer)) for name, answer in ANSWERS.items()}
    with farm(tmp_path, programs, listening={}) as nodes:
        ran = nodes.run("nodes", "prepare", "--python", "no-such-python", "--json", within_s=240)
    require_calm(ran)
    told = {one["node"]: one for one in json.loads(ran.out)["nodes"]}
    assert set(told) == {HEALTHY, *ANSWERS}
    assert "no-such-python cannot be run there" in told[HEALTHY]["detail"]
    assert {one["readiness"] for one in told.values()} == {"failed"}
    assert all(len(one["detail"]) <= 500 for one in told.values())


def test_an_engine_that_lies_is_one_failed_node(tmp_path: Path) -> None:
    says = {
        "nothing": "end=",
        "named": "engine=amd64\nnamed=a b\nend=",
        "size": f"engine=amd64\nnamed=a b c {'9' * 5000} d\nend=",
        "free": f"engine=amd64\nfree={'9' * 5000}\nend=",
        "many": "engine=amd64\n" + "layers=x\n" * 600_000,
        "escape": "engine=\x1b[2Jamd64\nend=",
    }
    programs = {name: PLAIN + f"print({text!r})\n" for name, text in says.items()}
    image = ImageFacts(digest="sha256:x", created="", architecture="amd64", size=1, layers=("a",))
    with farm(tmp_path, programs, listening={}) as nodes, nodes.as_user():
        options = SshOptions(config_files=(f"{nodes.env['HOME']}/.ssh/config",))
        found = on_nodes(options, tuple(says), lambda session: look(session, "r:1", image))
    escape = found.pop("escape")
    assert isinstance(escape, EngineFacts)
    assert escape.architecture == "amd64"
    for name, error in found.items():
        assert isinstance(error, RemoteError), name
        assert len(str(error)) < 1000


@pytest.fixture(scope="module")
def dripping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with farm(tmp_path_factory.mktemp("slow"), SLOW, listening={}) as one:
        yield one


def require_calm(ran: Ran) -> None:
    assert ran.code in {1, 2}, ran.err
    assert ran.memory_mib < MOST_MIB
    assert "Traceback" not in ran.out + ran.err
    assert "has a bug" not in ran.err
    assert not CONTROL.search(ran.out + ran.err)


def test_preflight_tells_the_hostile_from_the_healthy(nodes: Farm, tmp_path: Path) -> None:
    saved, page = tmp_path / "bundle", tmp_path / "page.html"
    words = ("--select", "ssh,host,gpu", "--save", str(saved), "--html", str(page))
    ran = nodes.run("preflight", *words, "--json", within_s=240)
    require_calm(ran)
    report = json.loads(ran.out)
    assert set(report["nodes"]) == {HEALTHY, *PROGRAMS, *LISTENERS}
    assert report["usable"] == [] or report["usable"] == [HEALTHY]
    assert {*PROGRAMS, *LISTENERS} <= set(report["exclude"])
    unreached = {
        node: finding
        for finding in report["findings"]
        if finding["id"] == "SSH001" and finding["verdict"] == "fail"
        for node in finding["nodes"]
    }
    assert set(unreached) == {*PROGRAMS, *LISTENERS}
    assert "make no sense" in unreached["deep"]["summary"]
    assert "a line of more than 64 KiB" in unreached["flood"]["evidence"]
    assert "more than" in unreached["framed"]["evidence"]
    passed = {
        f["id"] for f in report["findings"] if HEALTHY in f["nodes"] and f["verdict"] == "pass"
    }
    assert {"SSH001", "HOST001"} <= passed
    for finding in report["findings"]:
        assert "stolen" not in json.dumps(finding)
    assert "<script>owned" not in page.read_text()
    again = nodes.run("preflight", "--replay", str(saved), "--json", within_s=240)
    assert json.loads(again.out)["findings"] == report["findings"]


def test_the_report_for_people_has_their_words_and_nothing_of_a_terminal(nodes: Farm) -> None:
    ran = nodes.run("preflight", "--hosts", "good,banner", "--select", "ssh", "-v", within_s=240)
    require_calm(ran)
    assert "nothing here" in ran.out, "what a login says is evidence"


def test_a_node_that_drips_ends_at_the_deadline(dripping: Farm) -> None:
    job = PreflightJob(hosts=("drip", HEALTHY))
    probe = Probe(name="p", command="echo fine", parse=str, timeout_s=1.0)
    with dripping.as_user():
        transport = SshTransport(SshOptions(margin_s=15.0))
        compound = compose([probe], job, token=new_token())
        drip, good = transport.ask(job.hosts, compound, on_reply=lambda _: None)
    assert drip.reach.problem is ReachProblem.TIMEOUT
    assert good.reach.problem is None
    assert good.outputs["p"].stdout == "fine\n"


def test_a_conversation_ends_at_its_deadline_though_bytes_come(
    dripping: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterkit.transport.sync.helper._GREETING_S", 20.0)
    with dripping.as_user():
        found = on_nodes(
            SshOptions(), ("drip", HEALTHY), lambda session: Helper(session, sys.executable).node
        )
    assert found[HEALTHY] == HEALTHY
    assert isinstance(found["drip"], RemoteError)
    assert "within 20 s" in found["drip"].message


def test_stacks_of_the_healthy_node_are_shown(nodes: Farm) -> None:
    snippet = "echo '@ 7 0 good'; echo 'Thread 7 (idle): \"MainThread\"'; echo '    f (a.py:1)'"
    probe = Probe(name="stacks", command=snippet, parse=str, timeout_s=20.0)
    hosts = (HEALTHY, "flood", "framed", "deep", "surrogates", "liar", "packet")
    with nodes.as_user():
        compound = compose([probe], PreflightJob(hosts=hosts), token=new_token())
        replies = SshTransport(SshOptions()).ask(hosts, compound, on_reply=lambda _: None)
    found = fold_stacks(probe, replies)
    assert [(group.nodes, group.frames) for group in found.groups] == [
        ((HEALTHY,), ("f (a.py:1)",))
    ]
    assert {"flood", "framed", "packet"} <= {trouble.node for trouble in found.troubles}


def test_over_srun_a_node_speaks_for_itself_alone() -> None:
    """The label is srun's; what follows it is the node's own, names and labels of others too."""
    compound = compose(
        [Probe(name="p", command="x", parse=str)], PreflightJob(hosts=()), token="ck"
    )
    reader = StepReader(compound, tasks=3)
    for task, name in ((0, "n1"), (1, "n1"), (2, "n3")):
        for line in (f"ck {task} - @ 9.5 {name}", f"ck 0 p o of-{task}", "ck 0 - = 0 - -"):
            reader.feed(1.0, f"{task}: {line}\n".encode())
    reader.feed(1.0, b"7: ck 0 p o far\n1: x\n0: ck 0 p o late\n")
    said = "\n".join(
        f"srun: launching StepId=1.0 on host n{task + 1}, 1 tasks: {task}" for task in range(3)
    )
    told = reader.by_node(("n1", "n2", "n3"), said)
    outputs = {node: task.reply(node, 1.0).outputs["p"].stdout for node, task in told.items()}
    assert outputs == {"n1": "of-0\n", "n2": "of-1\n", "n3": "of-2\n"}
    # A Slurm that does not say so: who claims to be another one gains nothing.
    assert set(reader.by_node(("n1", "n2", "n3"), "")) == {"n3"}


def test_over_srun_a_flood_of_one_task_leaves_the_others() -> None:
    compound = compose(
        [Probe(name="p", command="x", parse=str)], PreflightJob(hosts=()), token="ck"
    )
    reader = StepReader(compound, tasks=2)
    reader.feed(1.0, b"1: ck 1 - @ 9.5 n2\n1: ck 1 p o fine\n")
    for _ in range(50):
        reader.feed(1.0, b"0: ck 0 p o x\n" * 8000)
    reader.feed(1.0, b"1: ck 1 - = 0 - -\n")
    said = "srun: launching 1.0 on host n1, 1 tasks: 0\nsrun: launching 1.0 on host n2, 1 tasks: 1"
    told = {node: one.reply(node, 1.0) for node, one in reader.by_node(("n1", "n2"), said).items()}
    assert told["n1"].reach.problem is ReachProblem.EXCESS
    assert told["n2"].reach.problem is None
    assert told["n2"].outputs["p"].stdout == "fine\n"


def test_top_shows_the_healthy_one(nodes: Farm) -> None:
    ran = nodes.run("top", "--once", "--json", within_s=240)
    require_calm(ran)
    rows = {row["node"]: row for row in json.loads(ran.out)["nodes"]}
    assert rows[HEALTHY]["problem"] in {None, ""}
    for name in (*PROGRAMS, *LISTENERS):
        assert rows[name]["problem"], name


def test_prepare_fails_one_by_one(nodes: Farm) -> None:
    words = ("--hosts", ",".join(QUICK), "--python", "no-such-python", "--json")
    ran = nodes.run("nodes", "prepare", *words, within_s=240)
    require_calm(ran)
    told = {one["node"]: one for one in json.loads(ran.out)["nodes"]}
    assert set(told) == set(QUICK)
    assert "no-such-python cannot be run there" in told[HEALTHY]["detail"]
    assert {one["readiness"] for one in told.values()} == {"failed"}
