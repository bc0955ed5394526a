"""`bench scaling` with real jobs on this machine; the script says how fast it would like to be."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import processes
from clusterkit.core.model import JobState
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.find import list_runs
from clusterkit.jobs.state.load import load_job
from clusterkit.jobs.submit.preflight import SubmitCallbacks
from clusterkit.jobs.submit.request import read_request
from clusterkit.jobs.submit.submit import start
from clusterkit.jobs.watch import cancel
from clusterkit.observe.bench.scaling.measure import MeasureOptions, measure
from clusterkit.observe.bench.scaling.rates import Bounds
from clusterkit.observe.bench.scaling.result import Ladder, Size, ladder
from tests.helpers.command_line import typed_in

SCRIPT = """
import os, sys, time
size = int(os.environ["WORLD_SIZE"])
if "silent" in sys.argv:
    print("loss 1.0", flush=True)
    time.sleep(300)
if "breaks" in sys.argv or ("fails" in sys.argv and size == 2):
    print("CUDA is not happy", flush=True)
    sys.exit(3)
if "stays" in sys.argv and size == 2:
    print("waiting", flush=True)
    time.sleep(300)
for step in range(1, 60 if "fails" in sys.argv and size == 3 else 10_000):
    time.sleep(0.025)  # what is read late at the beginning makes it shorter
    if "hangs" in sys.argv and size == 2 and step == 40:
        time.sleep(300)
    if os.environ["RANK"] == "0" and step % 2 == 0:
        print(f"step {step} samples/s {100 * size ** 0.5 + (-1) ** (step // 2):.4f}", flush=True)
"""

LISTENER = SubmitCallbacks(warn=pytest.fail, note=pytest.fail, on_reply=lambda _: None)


class Bench:
    """A folder with a script, and `bench scaling` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        (folder / "train.py").write_text(SCRIPT)
        config = folder / "clusterkit.yaml"
        config.write_text(f"clusters:\n  here: {{kind: local, run_dir: {self.runs}}}\n")
        self.environment = {**os.environ, "CLUSTERKIT_CONFIG_FILE": str(config)}

    def words(self, *words: str, script: str = "") -> list[str]:
        begin = ["bench", "scaling", "--cluster", "here", "--framework", "env", "--steps", "20"]
        return [*begin, "--warmup", "4", *words, "train.py", *script.split()]

    def start(self, *words: str, script: str = "") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "clusterkit", *self.words(*words, script=script)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, script: str = "") -> tuple[int, str, str]:
        done = typed_in(self.folder, *self.words(*words, script=script), **self.environment)
        return done.returncode, done.stdout, done.stderr

    def ladder(self, monkeypatch: pytest.MonkeyPatch, script: str = "") -> Ladder:
        monkeypatch.chdir(self.folder)
        monkeypatch.setenv("CLUSTERKIT_CONFIG_FILE", self.environment["CLUSTERKIT_CONFIG_FILE"])
        flags = {"cluster": "here", "framework": "env", "nodes": "2", "script": "train.py"}
        given = {**flags, "args": script.split(), "preflight": "off"}
        request = read_request(given, verb="bench scaling", job=None, warn=pytest.fail)
        return ladder(request, by=None, at=None)

    def states(self) -> list[JobState]:
        return [load_job(run).status.state for run in list_runs([self.runs])]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for run in list_runs([made.runs]):
        left = processes.marked(run.marker(), prefix=True)
        processes.kill_all(lambda run=run: processes.marked(run.marker(), prefix=True))
        assert not left, run.run_id


def of_size(document: dict[str, Any], size: int) -> dict[str, Any]:
    (found,) = (row for row in document["rows"] if row["size"] == size)
    return dict(found)


def test_throughput_and_efficiency_of_each_size(bench: Bench) -> None:
    code, out, err = bench.run("--nodes", "2", "--json", "--html", "page.html")
    assert code == 1, err
    assert "node: " not in err, "no progress beside a document"
    document = json.loads(out)
    assert (document["schema"], document["unit"], document["by"]) == (1, "samples/s", "nodes")
    one, two = of_size(document, 1), of_size(document, 2)
    assert 98.9 <= one["throughput"] <= 101.1
    assert one["efficiency"] == 1.0
    assert two["efficiency"] == pytest.approx(two["throughput"] / (2 * one["throughput"]), abs=1e-3)
    assert 0.69 <= two["efficiency"] <= 0.73
    assert two["steps"] >= 20
    assert two["step_s"] >= 0.02
    assert two["causes"], "it falls short, and something is said of that"
    (evidence,) = two["evidence"]  # the nodes of a local cluster are one machine
    assert evidence["yardstick_s"] > 0
    assert evidence["cpu_percent"] >= 0
    assert bench.states() == [JobState.CANCELLED] * 2
    title = f"{100 * two['efficiency']:.0f} % efficiency at 2 nodes"
    assert title in (bench.folder / "page.html").read_text()


def test_a_silent_script_is_told_what_to_print(bench: Bench) -> None:
    code, out, err = bench.run("--nodes", "2", "--patience", "3", script="silent")
    assert code == 2, err
    assert "printed no line that tells its throughput" in out
    assert "step 60 samples/s 431.2" in out
    (run,) = list_runs([bench.runs])
    assert "not tried    the smaller run told no throughput" in out
    assert str(run.logs) in "".join(out.split())
    assert run.log(0).read_text().startswith("loss")
    assert bench.states() == [JobState.CANCELLED]


def test_a_size_that_fails_leaves_the_others(bench: Bench) -> None:
    code, out, err = bench.run("--gpus-per-node", "3", "--at", "1,2,3", "--json", script="fails")
    assert code == 1, err
    document = json.loads(out)
    assert document["by"] == "slots"
    failed = of_size(document, 2)
    assert (failed["state"], failed["throughput"], failed["efficiency"]) == ("failed", None, None)
    assert "exit 3" in failed["problem"]
    assert "CUDA is not happy" in failed["problem"]
    last = of_size(document, 3)  # which came to its end by itself, or was ended before
    assert last["state"] in {"succeeded", "cancelled"}
    assert last["efficiency"] == pytest.approx(3**-0.5, abs=0.03)


def test_sizes_that_all_fail_are_no_measurement_but_a_finding(bench: Bench) -> None:
    code, out, err = bench.run("--nodes", "2", script="breaks")
    assert code == 1, err
    assert out.count("the job failed (exit 3)") == 2


def test_a_run_that_hangs_is_not_measured_by_what_it_told_before(bench: Bench) -> None:
    words = ("--nodes", "2", "--steps", "500", "--seconds", "2", "--patience", "5", "--json")
    code, out, err = bench.run(*words, script="hangs")
    assert code == 1, err
    document = json.loads(out)
    one, two = of_size(document, 1), of_size(document, 2)
    assert (one["efficiency"], one["problem"]) == (1.0, None)
    assert (two["throughput"], two["efficiency"]) == (None, None)
    assert re.fullmatch(r"it was silent for \d+ s after step 38", two["problem"])
    assert "clusterkit diagnose --stacks" in two["hint"]
    assert "--patience" in two["hint"]
    assert bench.states() == [JobState.CANCELLED] * 2


def test_a_run_that_somebody_ends_as_it_hangs_is_not_measured(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterkit.observe.bench.scaling.rates._LONG_S", 1.0)
    enders: list[threading.Thread] = []

    def end(run: RunFolder) -> None:
        while not (run.log(0).exists() and "step 38" in run.log(0).read_text()):
            time.sleep(0.1)
        while not any(text.startswith("2 nodes: running, step 38, ") for text in shown):
            time.sleep(0.1)
        time.sleep(6)  # the yardstick is taken, and more than that
        cancel(run)

    def started(size: Size, run: RunFolder) -> None:
        if size.count == 2:
            enders.append(threading.Thread(target=end, args=(run,)))
            enders[-1].start()

    jobs = bench.ladder(monkeypatch, script="hangs")
    measuring = MeasureOptions(bounds=Bounds(warmup=4, steps=60), timeout_s=60, global_batch=False)
    shown: list[str] = []
    listener = dataclasses.replace(LISTENER, show=shown.append)
    one, two = measure(jobs, measuring, callbacks=listener, started=started)
    assert [text for text in shown if text.startswith("2 nodes: running, step 38, ")]
    enders[0].join()
    assert (one.problem, one.failed) == ("", False)
    assert (two.state, two.rates, two.failed) == ("cancelled", {}, True)
    assert "s after step 38" in two.problem


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_cancels_the_job_and_shows_what_there_is(
    bench: Bench, number: signal.Signals
) -> None:
    client = bench.start("--nodes", "2", script="stays")
    deadline = time.monotonic() + 120
    while not any(
        run.log(0).exists() and "waiting" in run.log(0).read_text()
        for run in list_runs([bench.runs])
    ):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.1)
    client.send_signal(number)
    out, err = client.communicate(timeout=120)
    assert client.returncode == 130, err
    assert "samples/s" in out
    assert "100 %" in out
    assert bench.states() == [JobState.CANCELLED] * 2


def test_ctrl_c_while_a_job_is_handed_over_leaves_none(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = bench.ladder(monkeypatch)

    def interrupted(*words: Any, **more: Any) -> None:
        start(*words, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr("clusterkit.jobs.submit.submit.start", interrupted)
    measuring = MeasureOptions(
        bounds=Bounds(warmup=1), timeout_s=60, global_batch=False, command_line=("this", "test")
    )
    with pytest.raises(KeyboardInterrupt):
        next(measure(jobs, measuring, callbacks=LISTENER, started=lambda size, run: None))
    assert bench.states() == [JobState.CANCELLED]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to compare with"),
        (("--nodes", "2", "--at", "1,4"), "--at 4: the job has 2 nodes"),
        (("--nodes", "1:4"), "an elastic job has no size"),
        (("--job", "array.yaml"), "each size is one job"),
        (("--nodes", "2", "--plot", "x.doc"), "cannot draw x.doc"),
        (("--nodes", "2", "--html", "no/such/x.html"), "no/such"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_job(
    bench: Bench, words: tuple[str, ...], said: str
) -> None:
    (bench.folder / "array.yaml").write_text("array: lr=1,2\n")
    code, out, err = bench.run(*words)
    assert code == 2
    assert said in err
    assert out == ""
    assert list_runs([bench.runs]) == []
