"""JAX under the framework `env`: trained, stopped and resumed, broken, cancelled."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest

from tests.frameworks.environment import desk_with_local, left
from tests.helpers.desk import ROOT, Desk
from tests.helpers.healthy import assert_healthy
from tests.helpers.lab_jobs import await_true, in_time
from tests.lab.lab import Lab
from tests.lab.test_env import SNIPPETS
from tests.lab.test_training import losses

pytestmark = [pytest.mark.frameworks, pytest.mark.lab, pytest.mark.timeout(900)]

ENV = ("--framework", "env", "--nodes", "3")
THREE = (*ENV, "--gpus-per-node", "2")
SCRIPT = str(ROOT / "examples" / "train_jax.py")
SMALL = ("--width", "32", "--layers", "1")


@pytest.fixture
def desk(lab: Lab, request: pytest.FixtureRequest) -> Desk:
    return desk_with_local(lab, re.sub(r"\W+", "-", request.node.nodeid), "jax")


def said(desk: Desk, job: str, text: str) -> None:
    """Wait until a job has printed `text`; six processes take their time to begin on two cores."""
    await_true(lambda: text in desk.clusterkit("logs", job).stdout, 240)


@pytest.mark.parametrize("cluster", ["lab", "rack", "here"])
def test_training_on_three_nodes(cluster: str, desk: Desk) -> None:
    done = desk.submit("--wait", "--cluster", cluster, *THREE, SCRIPT, "--steps", "20")
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    assert "start: framework jax, world size 6, device cpu" in output
    assert output.count("start:") == 1
    first, last = losses(output)
    assert last < 0.6 * first
    assert_healthy(done["run_dir"])
    await_true(lambda: not left(desk, done["run_dir"]))


def test_a_notice_to_one_rank_makes_all_save_and_the_next_job_goes_on_there(desk: Desk) -> None:
    keep = ("--checkpoint-dir", str(desk.folder / "saved"), "--checkpoint-every", "100000")
    words = ("--cluster", "rack", *THREE, SCRIPT, *SMALL, *keep)
    first = desk.submit(*words, "--steps", "100000")
    said(desk, first["job_id"], "step 10 ")
    pid = desk.lab.processes("n2", r"^\S*python\S* -u \S*/train_jax\.py")[0].pid
    os.kill(pid, signal.SIGUSR2)
    said(desk, first["job_id"], "notice: saving after step")
    desk.clusterkit("cancel", first["job_id"])
    output = desk.clusterkit("logs", first["job_id"]).stdout
    saved = int(re.findall(r"notice: saving after step (\d+)", output)[-1])
    done = desk.submit("--wait", *words, "--steps", str(saved + 3))
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    assert f"resume: step {saved} from" in output
    assert f"in {saved + 3} steps" in output


TELLING = """
import os
import jax
from jax.experimental import multihost_utils

jax.config.update("jax_cpu_collectives_implementation", "gloo")
{join}
ranks = multihost_utils.process_allgather(jax.numpy.int32(int(os.environ["RANK"])))
if jax.process_index() == 0:
    print("told", jax.process_count(), ranks.tolist(), jax.process_index(), flush=True)
"""
BY_ITSELF = "jax.distributed.initialize()"


@pytest.mark.parametrize(
    ("cluster", "join", "words", "ranks"),
    [
        ("lab", BY_ITSELF, ("--gpus-per-node", "2"), 6),
        ("lab", SNIPPETS["jax"], ("--gpus-per-node", "2"), 6),
        ("rack", SNIPPETS["jax"], ("--gpus-per-node", "2"), 6),
        ("lab", BY_ITSELF, ("--set", "env.per-node=1"), 3),
    ],
)
def test_processes_find_each_other(
    cluster: str, join: str, words: tuple[str, ...], ranks: int, desk: Desk
) -> None:
    script = desk.write("tell.py", TELLING.format(join=join))
    done = desk.submit("--wait", "--cluster", cluster, *ENV, *words, script)
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    assert f"told {ranks} {list(range(ranks))} 0\n" in output


DYING = """
import os, sys
sys.path.insert(0, {examples!r})
import jax, train_jax

class Dying(train_jax.charlm.Text):
    def batch(self, step):
        if step == 5 and jax.process_index() == 3:
            print("last step", flush=True)
            if {how!r} == "kill":
                os.kill(os.getpid(), 9)
            raise ValueError("the loss is NaN")
        return super().batch(step)

train_jax.charlm.Text = Dying
train_jax.main()
"""


@pytest.mark.parametrize(
    ("cluster", "how", "ending"),
    [
        ("lab", "raise", "exited with 1"),
        ("rack", "raise", "exited with 1"),
        ("lab", "kill", "was ended by signal 9"),
    ],
)
def test_the_rank_that_fails_is_named_and_ends_the_job(
    cluster: str, how: str, ending: str, desk: Desk
) -> None:
    script = desk.write("dies.py", DYING.format(examples=str(ROOT / "examples"), how=how))
    words = ("--cluster", cluster, *THREE, script, *SMALL, "--steps", "100000")
    done = desk.clusterkit("submit", "--wait", "--json", *words)
    told = json.loads(done.stdout)
    assert (told["state"], told["reason"]) == ("failed", f"n2: rank 3 {ending}"), done.stderr
    await_true(lambda: not left(desk, told["run_dir"]))


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_cancel_leaves_nothing(cluster: str, desk: Desk) -> None:
    words = ("--cluster", cluster, *THREE, SCRIPT, *SMALL, "--steps", "100000")
    job = desk.submit(*words)
    said(desk, job["job_id"], "step 10 ")
    assert len(left(desk, job["run_dir"])) > 6
    began = time.monotonic()
    assert desk.clusterkit("cancel", job["job_id"]).returncode == 0
    desk.clusterkit("wait", job["job_id"])
    assert desk.state(job["job_id"]) == "cancelled"
    assert in_time(desk.lab, time.monotonic() - began, 30)
    await_true(lambda: not left(desk, job["run_dir"]))
