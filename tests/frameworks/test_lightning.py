"""Lightning under the framework `env`: trained, stopped and resumed, broken, cancelled."""

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

ENV = ("--framework", "env")
THREE = (*ENV, "--nodes", "3", "--gpus-per-node", "2")
SCRIPT = str(ROOT / "examples" / "train_lightning.py")
SMALL = ("--width", "32", "--layers", "1")


@pytest.fixture
def desk(lab: Lab, request: pytest.FixtureRequest) -> Desk:
    return desk_with_local(lab, re.sub(r"\W+", "-", request.node.nodeid), "lightning")


def said(desk: Desk, job: str, text: str) -> None:
    """Wait until a job has printed `text`; six processes take their time to begin on two cores."""
    await_true(lambda: text in desk.clusterkit("logs", job).stdout, 240)


@pytest.mark.parametrize("cluster", ["lab", "rack", "here"])
def test_training_on_three_nodes(cluster: str, desk: Desk) -> None:
    done = desk.submit("--wait", "--cluster", cluster, *THREE, SCRIPT, "--steps", "20")
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    assert "start: framework lightning, world size 6, device cpu" in output
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
    os.kill(rank(desk, "n2"), signal.SIGUSR2)
    said(desk, first["job_id"], "notice: saving after step")
    desk.clusterkit("cancel", first["job_id"])
    output = desk.clusterkit("logs", first["job_id"]).stdout
    saved = int(re.findall(r"notice: saving after step (\d+)", output)[-1])
    done = desk.submit("--wait", *words, "--steps", str(saved + 3))
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    assert f"resume: step {saved} from" in output
    assert f"in {saved + 3} steps" in output


def rank(desk: Desk, node: str) -> int:
    return desk.lab.processes(node, r"^\S*python\S* -u \S*/train_lightning\.py")[0].pid


TELLING = """
import os, signal
import torch
from lightning import Callback, LightningModule, Trainer

exec(open("page.py").read())

class Tell(Callback):
    def on_train_start(self, trainer, module):
        environment = trainer.strategy.cluster_environment
        print("told", trainer.global_rank, trainer.local_rank, trainer.node_rank,
              trainer.world_size, type(environment).__name__, environment.main_address,
              signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN, flush=True)

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, index):
        return self.layer(batch).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

trainer.callbacks.append(Tell())
trainer.fit_loop.epoch_loop.max_steps = 2
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(64, 1), batch_size=1))
"""


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_the_trainer_of_the_page_finds_itself_and_leaves_requeueing_to_us(
    cluster: str, desk: Desk
) -> None:
    desk.write("page.py", SNIPPETS["lightning"])
    done = desk.submit("--wait", "--cluster", cluster, *THREE, desk.write("tell.py", TELLING))
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    told = sorted(line.split() for line in re.findall(r"\btold (.*)", output))
    assert [words[:4] for words in told] == [
        [str(rank), str(rank % 2), str(rank // 2), "6"] for rank in range(6)
    ]
    assert {(len(words), words[6]) for words in told} == {(7, "True")}
    found = {"lab": "SLURMEnvironment", "rack": "LightningEnvironment"}[cluster]
    assert {words[4] for words in told} == {found}


DYING = """
import os, sys
sys.path.insert(0, {examples!r})
import train_lightning

class Dying(train_lightning.Speller):
    def training_step(self, batch, index):
        if self.global_rank == 3 and index == 5:
            print("last step", flush=True)
            if {how!r} == "kill":
                os.kill(os.getpid(), 9)
            raise ValueError("the loss is NaN")
        return super().training_step(batch, index)

train_lightning.Speller = Dying
train_lightning.main()
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
