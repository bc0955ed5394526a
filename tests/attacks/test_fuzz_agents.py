"""Whatever stands in the files of a job's nodes, or comes back from them: no uncaught exception."""

from __future__ import annotations

import json
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterkit.core import files
from clusterkit.core.errors import ClusterkitError
from clusterkit.core.model import ClusterKind, ClusterSpec, Host
from clusterkit.core.records import record_of
from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.ssh import ask, fetch, states
from clusterkit.executors.ssh.agent_files import read_agents
from clusterkit.executors.ssh.layout import SshLayout, read_layout, write_layout
from clusterkit.executors.ssh.node_files import NodeFiles, Progress
from clusterkit.executors.ssh.states import Life, state_of
from clusterkit.transport.probe import Output
from clusterkit.transport.ssh.session import Talk
from clusterkit.transport.sync.helper import Helper

RUN_ID = "job-20261121-120000-abcdef"
NAMES = ("n1", "n2", "n3")
CALM = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["n1", "n2", "../x", "/etc/passwd", "results/a", "logs/node-1.log", "keepers/1.json",
         "nodes/node-1-attempt-0.json", "nodes/node-0-attempt-0.json", "failures/0.json",
         "ends/1.json", "'; touch x; '", "succeeded", "running", "peer", "\ud800", "x" * 300]
    ),
)  # fmt: skip
NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 2, 1 << 18, 1 << 31, 1 << 42, 1 << 63, 10**300, 77, 0.5, 1e300]),
    st.integers(),
    st.floats(),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)
GOOD = {
    "node": "n2", "attempt": 0, "pid": 77, "start_time": "7", "boot_id": "b", "state": "failed",
    "exit_code": 1, "node_rank": 1, "started_at": 1.0, "ended_at": 2.0, "of": 3,
}  # fmt: skip
KEYS = [
    *GOOD, "slots", "began_at", "at", "schema", "lost", "reason", "unfit", "rank", "message",
    "tail", "among", "nodes", "sign", "bytes", "offset", "file", "last", "mode", "too_large",
    "left_out", "done", "error", "refused", "kind", "free",
    "have", "part", "over",
]  # fmt: skip
DOCUMENTS = st.one_of(
    VALUES,
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6),
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=2).map(lambda odd: {**GOOD, **odd}),
)
BYTES = st.one_of(
    st.binary(max_size=60),
    DOCUMENTS.map(lambda document: json.dumps(document).encode()),
    st.just(b"[" * 100_000),
    st.just(b'{"pid": ' + b"9" * 5000 + b"}"),
)
NAMED = st.sampled_from(
    ["keepers/1.json", "keepers/0.json", "ends/1.json", "nodes/node-1-attempt-0.json",
     "nodes/node-0-attempt-0.json", "nodes/rounds-0.jsonl", "failures/0.json",
     "submitit/keeper_1.log", "results/a", "results/a/b", "results/node-0/a", "nodes/../x"]
) | TEXTS  # fmt: skip


def as_sent(name: str, text: bytes, odd: dict[str, Any]) -> bytes:
    """Return an answer that has its bytes behind it, with something odd in it perhaps."""
    whole = {"bytes": len(text), "sign": [len(text), 1], "offset": 0, "last": True, "mode": 0o755}
    return json.dumps({"file": name, **whole, **odd}).encode() + b"\n" + text


ANSWERS = BYTES.map(lambda text: text + b"\n") | st.builds(
    as_sent,
    NAMED | st.just("logs/node-1.log"),
    BYTES,
    st.just({}) | st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=2),
)
NUMBERED = st.sampled_from(["0", "1", "\u0663", "\u00b2", "9" * 5000 + "x", "9" * 200, "-1", "01"])


def layout() -> SshLayout:
    return SshLayout(
        job_id="ssh-abcdef", names=NAMES, slots=(1,) * 3, tasks=3,
        ports=(20000, 29999), token="t", command=("python",), logs="/",
        cluster=ClusterSpec(
            name="farm", kind=ClusterKind.SSH, hosts=tuple(Host(name=name) for name in NAMES),
            shared_filesystem=False,
        ),
    )  # fmt: skip


def a_run(folder: Path) -> RunFolder:
    run = RunFolder(folder / "runs" / RUN_ID)
    for made in (run.agents, run.ends, run.nodes, run.failures, run.logs, run.submitit):
        made.mkdir(parents=True)
    return run


def submission() -> Submission:
    return Submission(
        run_id=RUN_ID, name="job", cluster="farm", kind=ClusterKind.SSH, framework="torchrun",
        nodes=3, tasks=3, submitted_at=0.0, requeue=1, max_nodes=4,
    )  # fmt: skip


@CALM
@given(st.data())
def test_any_files_in_a_run_folder_give_a_state(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = a_run(Path(folder))
        write_layout(run, layout())
        named = {
            run.agents: "{}.json",
            run.ends: "{}.json",
            run.failures: "{}.json",
            run.nodes: data.draw(st.sampled_from(["node-{}-attempt-0.json", "rounds-{}.jsonl"])),
        }
        for place, name in named.items():
            for number in data.draw(st.lists(NUMBERED, max_size=2)):
                (place / name.format(number)[-200:]).write_bytes(data.draw(BYTES))
        agents = read_agents(run)
        for agent in agents:
            assert agent.node in NAMES
            said = subprocess.run(
                ["sh", "-n", "-c", states.question(agent)], capture_output=True, check=False
            )
            assert said.returncode == 0
        lives = {agent: data.draw(st.sampled_from(list(Life))) for agent in agents}
        state_of(run, submission(), agents, lives)
        node_results.read_attempts(run)
        node_results.read_failures(run)
        node_results.read_rounds(run, 0)
        node_results.latest_attempt(run)
        fetch.settle(run, layout(), NAMES)
        fetch.decide_first_failure(run, layout())


@CALM
@given(BYTES)
def test_any_layout_is_read_or_refused(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = a_run(Path(folder))
        (run.path / "ssh.json").write_bytes(text)
        with pytest.raises(ClusterkitError):
            read_layout(run)


class Lines(Talk):
    """What a node says, in the place of a channel."""

    def __init__(self, said: bytes) -> None:
        self.rest = said

    def send(self, data: bytes) -> None:
        pass

    def expect(self, limit_s: float) -> None:
        pass

    def line(self) -> bytes | None:
        found, end, self.rest = self.rest.partition(b"\n")
        return found if end or found else None

    def take(self, count: int) -> bytes:
        assert 0 <= count <= 1 << 20
        found, self.rest = self.rest[:count], self.rest[count:]
        if len(found) < count:
            raise EOFError
        return found

    def error_output(self) -> str:
        return ""

    def exit_code(self) -> int:
        return 1


@CALM
@given(said=st.lists(ANSWERS, max_size=6), results=st.booleans(), remembered=VALUES)
def test_any_answers_write_nothing_but_the_run_folder(
    *, said: list[bytes], results: bool, remembered: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = a_run(Path(folder))
        helper = Helper.__new__(Helper)
        helper.node, helper.python, helper._has_begun = "n2", "python", True
        helper.talk = Lines(b"".join(said))
        progress = record_of(Progress, remembered) or Progress()
        node = NodeFiles(run, layout(), 1, progress, {})
        with suppress(ClusterkitError, EOFError):
            node._read(helper, log_most=1 << 26, results=results)
        files.json_text(progress).encode()
        for path in Path(folder).rglob("*"):
            assert path.is_dir() or path.is_relative_to(run.path)
            assert path.stat().st_size < 1 << 20
        for name in ("keepers/0.json", "ends/0.json", "nodes/node-0-attempt-0.json"):
            assert not (run.path / name).exists()


@CALM
@given(st.text(max_size=30) | DOCUMENTS.map(json.dumps), st.text(max_size=9), st.integers())
def test_any_reply_to_the_offer_of_a_job_is_a_yes_or_a_refusal(
    said: str, errors: str, code: int
) -> None:
    answer = Output(exit_code=code, stdout=said, stderr=errors)
    refusal = ask._refusal("n2", answer, layout())
    if refusal is None:
        assert code == 0
    else:
        assert refusal.hint is None or "touch" not in refusal.hint
        str(ask.refused({"n2": refusal}, layout())).encode(errors="replace")
