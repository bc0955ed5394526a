"""Jobs from Python, laid out jobs, and jobs without their package, on the practice cluster."""

from __future__ import annotations

import json
import sys
import venv

import pytest

from tests.helpers.desk import Desk

pytestmark = pytest.mark.lab

HELLO = """\
import os
names = ("RANK", "WORLD_SIZE", "PP_SIZE", "CK_NODES")
print(*(os.environ.get(name) for name in names), os.uname().nodename, flush=True)
"""
PYTHON = """\
import json, clusterkit
words = dict(framework="env", cluster={cluster!r}, nodes=3, gpus_per_node=1)
job = clusterkit.submit("hello.py", **words, {more})
ended = job.wait()
print(json.dumps([ended["state"], job.logs(), job.job_id]))
"""
SWITCHES = """\
SwitchName=odd Nodes=n[1,3]
SwitchName=even Nodes=n2
SwitchName=core Switches=odd,even
"""


@pytest.mark.parametrize(
    ("cluster", "more", "nodes"),
    [("lab", "pp=3", "n1 n2 n3"), ("rack", 'pp=3, topology="switches.txt"', "n1 n3 n2")],
)
def test_python_submits_a_job_that_is_laid_out(
    desk: Desk, cluster: str, more: str, nodes: str
) -> None:
    desk.write("hello.py", HELLO)
    desk.write("switches.txt", SWITCHES)
    code = PYTHON.format(cluster=cluster, more=more)
    done = desk.lab.run(
        "head", [sys.executable, "-c", code], cwd=desk.folder, env=desk.environment(), timeout_s=300
    )
    assert done.returncode == 0, done.stderr
    state, logs, job_id = json.loads(done.stdout)
    assert state == "succeeded"
    ranks = sorted(line.split("] ")[1] for line in logs.splitlines() if "] " in line)
    names = nodes.split()
    assert ranks == [f"{rank} 3 3 {nodes} {names[rank]}" for rank in range(3)]
    assert desk.state(job_id) == "succeeded"


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_a_launcher_whose_package_is_not_there_says_so_last(desk: Desk, cluster: str) -> None:
    """One node: nobody asks it before the job starts, nor knows what a module would bring."""
    desk.write("hello.py", HELLO)
    bare = desk.folder / "bare"
    venv.create(bare, symlinks=True, with_pip=False)
    config = desk.folder / "clusterkit.yaml"
    python = f"{bare}/bin/python3"
    config.write_text(config.read_text().replace(f"python: {sys.executable}", f"python: {python}"))
    done = desk.submit("--cluster", cluster, "--framework", "deepspeed", "--wait", "hello.py")
    assert done["state"] == "failed"
    said = done["failure"]["tail"]
    assert "No module named" in said[-4]
    assert said[-3].startswith(
        "clusterkit: framework deepspeed needs the package deepspeed, which "
    )
    assert f"{python} on " in said[-3]
    assert said[-2] == f"hint: {python} -m pip install 'deepspeed>=0.16' ninja 'torch>=2.6'"
    assert "--image clusterkit/deepspeed:cuda" in said[-1]
