"""Nodes keep how busy their GPUs are, and a job that leaves all of them idle is cancelled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers.desk import Desk
from tests.helpers.lab_faults import gpus
from tests.helpers.lab_jobs import await_true

pytestmark = pytest.mark.lab


def set_busy(folder: Path, node: str, percent: int) -> None:
    table = folder / node / "gpus" / "gpus.csv"
    head, *rows = [line.split(", ") for line in table.read_text().splitlines()]
    at = head.index("utilization.gpu")
    for row in rows:
        row[at] = str(percent)
    written = table.with_suffix(".new")
    written.write_text("".join(f"{', '.join(row)}\n" for row in (head, *rows)))
    written.replace(table)


def test_a_job_whose_gpus_idle_on_all_nodes_is_cancelled(desk: Desk, tmp_path: Path) -> None:
    config = (desk.folder / "clusterkit.yaml").read_text()
    keys = "    idle_limit: 1\n    on_idle: cancel\n    run_dir:"
    (desk.folder / "clusterkit.yaml").write_text(config.replace("    run_dir:", keys))
    script = desk.write("sleeps.sh", "sleep 300\n")
    first, second = desk.lab.nodes[:2]
    with gpus(desk.lab, tmp_path, **{first: "healthy8", second: "healthy8"}):
        for node in (first, second):
            set_busy(tmp_path, node, 80)
        done = desk.submit(
            *("--cluster", "lab", "--framework", "env", "--nodes", "2", "--gpus-per-node", "2"),
            *("--preflight", "off", script),
            env={"CUDA_VISIBLE_DEVICES": "0,1"},
        )
        run = RunFolder(Path(done["run_dir"]))
        await_true(lambda: run.samples(0, 0).exists() and run.samples(1, 0).exists())
        set_busy(tmp_path, first, 0)
        idle = f"clusterkit: {first}: its GPUs have been idle for 1 min"
        await_true(lambda: run.log(0).exists() and idle in run.log(0).read_text(), 90)
        assert desk.state(done["job_id"]) == "running"
        set_busy(tmp_path, second, 0)
        over = desk.clusterkit("wait", done["job_id"], "--json", timeout_s=90)
        assert json.loads(over.stdout)["state"] == "cancelled"
    lines = [json.loads(line)["busy"] for line in run.samples(0, 0).read_text().splitlines()]
    assert lines[0] == {"0": 80.0, "1": 80.0}
    assert lines[-1] == {"0": 0.0, "1": 0.0}
    told = json.loads(desk.clusterkit("status", done["job_id"], "--usage", "--json").stdout)
    assert 0 < told["usage"]["busy"] < 0.8
