"""Run folders that strangers made up: no verb that looks at one ends with an exception.

The files are whole ones with hostile pieces in them, or made of nothing that anybody knows. Every
reader of a run is called, also of one's own, which nodes and crashes may have spoilt.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from clusterkit.cli.diagnose.report import why_failed
from clusterkit.cli.frame import console
from clusterkit.cli.jobs import wait as waiting
from clusterkit.cli.jobs.status import status
from clusterkit.core import files
from clusterkit.core.errors import ClusterkitError
from clusterkit.core.model import ClusterKind, NodeResult
from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.document import full_document_of, logs_document
from clusterkit.jobs.find import find_run, list_runs
from clusterkit.jobs.logs import read_logs
from clusterkit.jobs.start_queued import may_need_client
from clusterkit.jobs.state.load import load_job, load_jobs
from clusterkit.observe.diagnose.job import diagnose_run
from clusterkit.observe.diagnose.rules import load_rules
from clusterkit.observe.prometheus import write_jobs
from clusterkit.observe.top.watch import Training
from tests.attacks import runs
from tests.attacks.runs import STRANGER, Trap

pytestmark = pytest.mark.needs("root")

NASTY: st.SearchStrategy[Any] = st.sampled_from([
    10**4000, -1, 0, 1 << 63, 2**42, 1e300, float("inf"), float("nan"), True, None, [], {}, [[]],
    "", "-u", "--me", "$(reboot)", "../../etc/passwd", "/", "\x00", "\x1b]0;owned\x07", "\ud800",
    "²", "٣", "n[1-99999999]", "a" * 5000, "array-abcdef", {"a": {"b": [None]}}, ["x", 7, None],
])  # fmt: skip
ANY = st.recursive(
    NASTY | st.text(max_size=20) | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
RULES = load_rules()
RESULT = NodeResult(
    node_rank=0, node="127.0.0.1", exit_code=7, started_at=1.0, ended_at=2.0, tail=("the end",)
)


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trap]:
    trap = runs.make_trap(tmp_path_factory.mktemp("trap"))
    yield trap
    trap.listener.close()


def whole(root: Path, trap: Trap, kind: ClusterKind, uid: int) -> RunFolder:
    """Return a run in which every file stands that a client may read."""
    run = runs.prepare(root, trap, kind, uid=uid)
    node_results.write_result(run, RESULT, attempt=0, n_nodes=1)
    files.write_json(run.rank_failure(0), {"node": "127.0.0.1", "rank": 0, "exit_code": 7})
    files.write_json(run.requeued(0), {"why": "lost"})
    files.write_text(run.rounds(0), json.dumps({"nodes": ["127.0.0.1"]}) + "\n")
    runs.control(run, os.getpid())
    submission = json.loads(run.submission.read_text())
    ended = {"state": "failed", "exit_code": 7, "reason": "why"}
    files.write_json(run.ended, ended)
    files.write_json(run.state, {**submission, "status": ended})
    return run


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where in a document something stands."""
    yield at
    keys = range(len(document)) if isinstance(document, list) else document
    for key in keys if isinstance(document, dict | list) else ():
        yield from places(document[key], (*at, key))


def with_value(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    changed = copy.deepcopy(document)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


def look(run: RunFolder, rules: Any) -> None:
    """Do all that only looks at a run; what is refused is refused in words."""
    for reader in (
        lambda: console.json_document(full_document_of(load_job(run))),
        lambda: console.json_document(logs_document(run, None, 3)),
        lambda: status(str(run.path), None, None, 20, None, False),
        lambda: list(read_logs(run)),
        lambda: diagnose_run(run, rules),
        lambda: console.say("\n".join(why_failed(load_job(run)))),
        lambda: Training(run).look(),
        lambda: may_need_client(run),
        lambda: list(waiting._rows(load_jobs([run]))),
        lambda: write_jobs(run.path.parent.parent / "x.prom", load_jobs([run]), now=1.0),
        lambda: find_run("4242", [run.path.parent]),
        lambda: load_jobs(list_runs([run.path.parent])),
    ):
        with suppress(ClusterkitError, typer.Exit):
            reader()


@pytest.mark.parametrize("uid", [0, STRANGER], ids=["ours", "theirs"])
@pytest.mark.parametrize("kind", list(ClusterKind))
@settings(
    max_examples=25,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_no_file_of_a_run_ends_a_verb_with_an_exception(
    data: st.DataObject,
    uid: int,
    kind: ClusterKind,
    tmp_path: Path,
    trap: Trap,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if uid == 0 and kind is ClusterKind.SSH:
        pytest.skip("its nodes would be asked, which is about the answers of nodes")
    monkeypatch.setenv("PATH", str(trap.folder / "bin"))
    root = tmp_path / "runs"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    run = whole(root, trap, kind, uid)
    there = sorted(path for path in run.path.rglob("*.json*") if path.suffix != ".sbatch")
    if data.draw(st.booleans()):
        run.state.unlink()
        there.remove(run.state)
    for path in data.draw(st.lists(st.sampled_from(there), min_size=1, max_size=3, unique=True)):
        known = json.loads(path.read_text())
        place = data.draw(st.sampled_from(list(places(known))))
        text = json.dumps(with_value(known, place, data.draw(NASTY | ANY)))
        torn = int(data.draw(st.just(1.0) | st.floats(0, 1)) * len(text))
        path.write_bytes(text.encode()[:torn] + data.draw(st.sampled_from([b"", b"", b"\xff"])))
    runs.give(run.path, uid)
    before = runs.state_of(root)
    (trap.folder / "programs").write_text("")
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        look(run, RULES)
    printed = output.getvalue()
    printed.encode()
    assert "\x1b" not in printed
    if uid == STRANGER:
        assert runs.state_of(root) == before
        assert trap.caught() == []


@settings(max_examples=60)
@given(document=ANY, known=st.booleans())
def test_a_result_has_bounds_or_is_none(document: Any, known: bool) -> None:
    whole = dataclasses.asdict(RESULT)
    if known and isinstance(document, dict):
        document = {**whole, **document}
    data = json.dumps(document).encode()
    found = node_results.result_of(files.parse_json(data))
    assert found is None or 0 <= found.ended_at < 1e11
