"""Jobs that record in MLflow, W&B and TensorBoard as the page says, and what can then be read."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.frameworks.environment import desk_with_local, python_of
from tests.helpers.desk import ROOT, Desk
from tests.helpers.lab_jobs import await_true
from tests.lab.lab import Lab

pytestmark = [pytest.mark.frameworks, pytest.mark.lab, pytest.mark.timeout(600)]

PAGE = (ROOT / "docs" / "how-to" / "trackers.md").read_text()
SNIPPETS = dict(re.findall(r"```python\n# ([^\n]+)\n(.*?)```", PAGE, re.DOTALL))
TWO = ("--framework", "env", "--nodes", "2", "--gpus-per-node", "1")
TWICE = ("--requeue", "1", "--requeue-on", "failure", "--wait")
FAILS_ONCE = "\nimport os, sys\nsys.exit(3 * (os.environ['CK_RESTART_COUNT'] == '0'))\n"
ALONE = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""Or its server starts eight processes more."""
WAITS = "\nimport time\nprint('recorded', flush=True)\ntime.sleep(300)\n"


@pytest.fixture
def desk(lab: Lab, request: pytest.FixtureRequest) -> Desk:
    return desk_with_local(lab, re.sub(r"\W+", "-", request.node.nodeid), "trackers")


@contextmanager
def running(desk: Desk, *words: str) -> Iterator[Path]:
    """Have a program run on the head until Ctrl-C; give the file of what it says."""
    said = desk.folder / f"said-{len(words)}"
    with said.open("w") as out:
        process = desk.lab.popen(
            "head", words, cwd=desk.folder, env=desk.environment(**ALONE), stdout=out, stderr=out
        )
    try:
        yield said
    finally:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def fetched(desk: Desk, url: str, body: str = "") -> str:
    """Return what is there; nothing where nobody answers yet."""
    program = (
        "import sys, urllib.request as u\n"
        "asked = u.Request(sys.argv[1], sys.argv[2].encode() or None)\n"
        "asked.add_header('content-type', 'application/json')\n"
        "print(u.urlopen(asked, timeout=20).read().decode())"
    )
    done = desk.lab.run("head", [sys.executable, "-c", program, url, body])
    return done.stdout if done.returncode == 0 else ""


def test_both_attempts_of_a_job_are_one_run_of_mlflow(desk: Desk) -> None:
    url = "http://127.0.0.1:5077"
    store = ("--workers", "1", "--backend-store-uri", f"sqlite:///{desk.folder}/mlflow.db")
    place = ("--host", "127.0.0.1", "--port", "5077")
    with running(desk, str(python_of("trackers")), "-m", "mlflow", "server", *place, *store):
        await_true(lambda: bool(fetched(desk, f"{url}/health")), 120)
        script = desk.write("train.py", SNIPPETS["mlflow"] + FAILS_ONCE)
        words = ("--cluster", "here", *TWO, *TWICE, "--env", f"MLFLOW_TRACKING_URI={url}")
        done = desk.submit(*words, script)
        assert done["state"] == "succeeded", desk.clusterkit("logs", done["job_id"]).stdout
        asked = json.dumps({"experiment_ids": ["0", "1"]})
        found = fetched(desk, f"{url}/api/2.0/mlflow/runs/search", asked)
        (run,) = json.loads(found)["runs"]
        query = f"run_id={run['info']['run_id']}&metric_key=loss"
        kept = json.loads(fetched(desk, f"{url}/api/2.0/mlflow/metrics/get-history?{query}"))
    assert run["info"]["run_name"] == Path(done["run_dir"]).name
    tags = {one["key"]: one["value"] for one in run["data"]["tags"]}
    assert (tags["job"], tags["cluster"], tags["framework"]) == ("train", "here", "env")
    assert sorted(one["step"] for one in kept["metrics"]) == [0, 0, 1, 1, 2, 2]


def test_each_attempt_is_kept_for_wandb_under_the_name_of_the_run(desk: Desk) -> None:
    script = desk.write("train.py", SNIPPETS["wandb"] + "if first: run.finish()" + FAILS_ONCE)
    words = ("--cluster", "here", *TWO, *TWICE, "--env", "WANDB_MODE=offline")
    done = desk.submit(*words, script)
    assert done["state"] == "succeeded", desk.clusterkit("logs", done["job_id"]).stdout
    name = Path(done["run_dir"]).name
    kept = [*Path(done["run_dir"]).glob(f"results/wandb/offline-run-*/run-{name[-22:]}.wandb")]
    assert [path.stat().st_size > 500 for path in kept] == [True, True]
    for path in kept:
        said = path.read_bytes()
        assert [word in said for word in (name.encode(), b"here", b"env")] == [True] * 3


def test_tensorboard_on_a_node_is_read_here(desk: Desk) -> None:
    script = desk.write("train.py", SNIPPETS["tensorboard"] + WAITS)
    job = desk.submit("--cluster", "rack", *TWO, script)
    ours = (sys.executable, "-m", "clusterkit")
    try:
        await_true(lambda: "recorded" in desk.clusterkit("logs", job["job_id"]).stdout, 120)
        shows = (str(python_of("trackers")), "-m", "tensorboard.main", "--logdir", "runs")
        inside = (*ours, "exec", job["job_id"], "--", *shows, "--port", "6006")
        with (
            running(desk, *inside),
            running(desk, *ours, "forward", job["job_id"], "0:6006") as way,
        ):
            await_true(lambda: "\n" in way.read_text())
            page = f"{way.read_text().split()[0]}/data/plugin/scalars/tags"
            await_true(lambda: "loss" in fetched(desk, page), 120)
            ((where, tags),) = json.loads(fetched(desk, page)).items()
    finally:
        desk.clusterkit("cancel", job["job_id"])
    assert where == f"{Path(job['run_dir']).name}/results/tensorboard"
    assert list(tags) == ["loss"]
