"""The rendered scripts, run under bash with a fake `srun` and `scontrol`: no Slurm, no GPU.

The fake srun starts its command once a node, in a process of its own, with the variables that the
real one sets; the fake python writes down the words and variables that it was given.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.model import ClusterKind, ClusterSpec
from clusterkit.jobs.submit.hand_over import put_back_until_it_runs
from clusterkit.launch.frameworks import framework_names
from clusterkit.launch.options import JobSpec
from clusterkit.launch.plan import make_plan
from clusterkit.launch.render import render
from tests.helpers.render_cases import NASTY, NASTY_ARGS

FAKE_SRUN = f"""#!{sys.executable}
import os, subprocess, sys
words = sys.argv[1:]
while words and words[0].startswith("-"):
    words.pop(0)
nodes = int(os.environ["SLURM_JOB_NUM_NODES"])
running = [
    subprocess.Popen(words, env=dict(os.environ, SLURM_NODEID=str(i), SLURM_PROCID=str(i)))
    for i in range(nodes)
]
sys.exit(max(process.wait() for process in running))
"""
FAKE_SCONTROL = """#!/bin/sh
[ "$1 $2" = "show hostnames" ] && echo "$3" | tr , '\\n'
"""
FAKE_PYTHON = f"""#!{sys.executable}
import json, os, sys, time
rank = os.environ["CK_NODE_RANK"]
seen = {{"argv": sys.argv[1:], "env": dict(os.environ)}}
tmp = os.environ["CK_TMP"]
seen["files"] = {{name: open(os.path.join(tmp, name)).read() for name in os.listdir(tmp)}}
with open(os.path.join(os.environ["SEEN"], rank + ".json"), "w") as out:
    json.dump(seen, out)
if os.environ.get("SLEEP"):
    time.sleep(float(os.environ["SLEEP"]))
sys.exit(int(os.environ.get("FAIL_" + rank, "0")))
"""


class Desk:
    """A folder with the fakes on PATH, and what the last run left in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name, text in (
            ("srun", FAKE_SRUN),
            ("scontrol", FAKE_SCONTROL),
            ("fakepython", FAKE_PYTHON),
        ):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)

    def render(self, **values: Any) -> dict[str, str]:
        kind = values.pop("kind", ClusterKind.SLURM)
        cluster = ClusterSpec(
            name="fake",
            kind=kind,
            python="fakepython",
            gpus_per_node=2,
            **values.pop("cluster", {}),
        )
        boots = values.pop("boots", False)
        job = JobSpec(**{"framework": "torchrun", "script": "train.py", "nodes": 3, **values})
        plan = make_plan(job, cluster, workdir=str(self.folder))
        rendered = render(put_back_until_it_runs(plan) if boots else plan)
        return {file.name: file.text for file in rendered}

    def environment(self, nodes: str, job_id: int, **more: str) -> dict[str, str]:
        return {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "SEEN": str(self.folder),
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_NODELIST": nodes,
            "SLURM_JOB_NUM_NODES": str(nodes.count(",") + 1),
            **more,
        }

    def sbatch(
        self, text: str, *, nodes: str = "node7,node66,node8", job_id: int = 1234, **more: str
    ) -> subprocess.CompletedProcess[str]:
        script = self.folder / "job.sbatch"
        script.write_text(text)
        return subprocess.run(
            ["bash", script],
            env=self.environment(nodes, job_id, **more),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def seen(self, rank: int) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / f"{rank}.json").read_text())
        return document


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_ranks_follow_the_order_of_slurm(desk: Desk) -> None:
    # c10d would sort these names as strings and swap node66 and node8.
    done = desk.sbatch(desk.render()["job.sbatch"])
    assert done.returncode == 0, done.stderr
    names = [desk.seen(rank)["env"]["CK_NODE_NAME"] for rank in range(3)]
    assert names == ["node7", "node66", "node8"]
    assert [f"--node-rank={rank}" in desk.seen(rank)["argv"] for rank in range(3)] == [True] * 3


def test_the_command_of_a_torchrun_node(desk: Desk) -> None:
    desk.sbatch(desk.render(args=("--lr", "1e-3"))["job.sbatch"])
    seen = desk.seen(1)
    assert seen["argv"] == [
        "-u",
        f"{seen['env']['CK_TMP']}/agent.py",
        "--nnodes=3",
        "--node-rank=1",
        f"--master-addr={seen['env']['CK_HEAD_ADDR']}",
        f"--master-port={seen['env']['CK_PORT']}",
        "--nproc-per-node=2",
        "train.py",
        "--lr",
        "1e-3",
    ]


def test_an_elastic_torchrun_has_its_own_rendezvous_and_restarts(desk: Desk) -> None:
    text = desk.render(nodes=2, max_nodes=3)["job.sbatch"]
    desk.sbatch(text, SLURM_RESTART_COUNT="2")
    argv = desk.seen(0)["argv"]
    assert "--nnodes=2:3" in argv
    assert "--rdzv-backend=clusterkit" in argv
    assert "--max-restarts=3" in argv
    assert "--rdzv-id=1234-2" in argv


@pytest.mark.parametrize("framework", framework_names())
def test_values_and_arguments_arrive_unchanged(desk: Desk, framework: str) -> None:
    texts = desk.render(framework=framework, env=NASTY, args=NASTY_ARGS)
    done = desk.sbatch(texts["job.sbatch"])
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        seen = desk.seen(rank)
        assert {name: seen["env"][name] for name in NASTY} == NASTY
        assert tuple(seen["argv"][-len(NASTY_ARGS) :]) == NASTY_ARGS


def test_deepspeed_gets_a_hostfile_in_rank_order(desk: Desk) -> None:
    texts = desk.render(framework="deepspeed", deepspeed_preset="zero2")
    desk.sbatch(texts["job.sbatch"])
    seen = desk.seen(2)
    assert seen["files"]["hostfile"] == "node7 slots=2\nnode66 slots=2\nnode8 slots=2\n"
    assert json.loads(seen["files"]["ds_config.json"])["zero_optimization"]["stage"] == 2
    tmp = seen["env"]["CK_TMP"]
    assert seen["argv"][-2:] == ["--deepspeed_config", f"{tmp}/ds_config.json"]
    assert f"--hostfile={tmp}/hostfile" in seen["argv"]
    assert {"--no_ssh", "--node_rank=2"} <= set(seen["argv"])


def test_the_trainer_is_given_its_configuration_by_its_own_flag(desk: Desk) -> None:
    texts = desk.render(framework="deepspeed", deepspeed_preset="zero3-auto")
    desk.sbatch(texts["job.sbatch"])
    seen = desk.seen(0)
    assert seen["argv"][-2:] == ["--deepspeed", f"{seen['env']['CK_TMP']}/ds_config.json"]


def test_private_folders_are_removed(desk: Desk) -> None:
    desk.sbatch(desk.render(framework="deepspeed")["job.sbatch"])
    assert not any(Path(desk.seen(rank)["env"]["CK_TMP"]).exists() for rank in range(3))


RECORDER = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT")


@pytest.mark.parametrize(
    ("framework", "env", "asked"),
    [
        ("torchrun", {}, ("R/flight-recorder-3-rank-", "2000", "1")),
        ("deepspeed", {"TORCH_FR_BUFFER_SIZE": "9"}, ("R/flight-recorder-3-rank-", "9", "1")),
        ("env", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", RECORDER[2]: "0"},
         ("R/flight-recorder-3-rank-", "0", "0")),
        ("accelerate", {RECORDER[0]: "/x-"}, ("/x-", None, None)),
        ("torchrun", {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/x-"}, (None, None, None)),
        ("mpi", {}, (None, None, None)),
    ],
)  # fmt: skip
def test_dumps_of_flight_recorders_are_asked_for_unless_told_otherwise(
    desk: Desk, framework: str, env: dict[str, str], asked: tuple[str | None, ...]
) -> None:
    results = desk.folder / "the results"
    results.mkdir()
    for attempt in range(4):
        (results / f"flight-recorder-{attempt}-rank-0").touch()
    text = desk.render(framework=framework, env=env)["job.sbatch"]
    done = desk.sbatch(text, SLURM_RESTART_COUNT="3", CK_RESULTS=str(results))
    assert done.returncode == 0, done.stderr
    seen = desk.seen(0)["env"]
    wanted = (value and value.replace("R/", f"{results}/") for value in asked)
    assert tuple(seen.get(name) for name in RECORDER) == tuple(wanted)
    pipes = seen.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    assert pipes == (f"{seen['CK_TMP']}/dump-" if asked[1] else None)
    kept = {int(path.name[16]) for path in results.iterdir()}
    assert kept == ({0, 2, 3} if asked[1] else {0, 1, 2, 3})


def test_by_hand_no_dumps_are_asked_for(desk: Desk) -> None:
    desk.sbatch(desk.render()["job.sbatch"])
    assert not {*RECORDER} & desk.seen(0)["env"].keys()


@pytest.mark.parametrize("job_id", [1, 999, 1000, 4_294_967_295])
def test_ports_stay_outside_the_ephemeral_range(desk: Desk, job_id: int) -> None:
    desk.sbatch(desk.render()["job.sbatch"], job_id=job_id)
    port = int(desk.seen(0)["env"]["CK_PORT"])
    assert 20000 <= port <= 29999


def test_neighbouring_jobs_get_different_ports(desk: Desk) -> None:
    ports = []
    for job_id in (41, 42):
        desk.sbatch(desk.render()["job.sbatch"], job_id=job_id)
        ports.append(int(desk.seen(0)["env"]["CK_PORT"]))
    assert abs(ports[0] - ports[1]) == 10


def test_a_port_in_use_is_passed_over(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 20000 + 77 * 10)):
        desk.sbatch(desk.render()["job.sbatch"], job_id=77)
    assert desk.seen(0)["env"]["CK_PORT"] == str(20000 + 78 * 10)


def test_the_exit_code_of_a_node_is_the_exit_code_of_the_job(desk: Desk) -> None:
    assert desk.sbatch(desk.render()["job.sbatch"], FAIL_1="3").returncode == 3


@pytest.mark.parametrize("most", [None, 4], ids=["fixed", "elastic"])
def test_a_notice_kills_no_worker_that_is_only_starting(desk: Desk, most: int | None) -> None:
    (desk.bin / "worker").write_text("#!/bin/sh\nkill -USR2 $$; kill -USR1 $$; echo lives\n")
    (desk.bin / "worker").chmod(0o755)
    ours = {"CLUSTERKIT_WORKER_PYTHON": "worker", "CLUSTERKIT_RUN_FOLDER": str(desk.folder)}
    done = desk.sbatch(desk.render(max_nodes=most)["job.sbatch"], **ours)
    assert (done.returncode, done.stdout) == (0, "lives\n" * 3), done.stderr


NOTICED_SRUN = """#!/bin/bash
trap 'echo told; exit 5' USR2
kill -USR2 $PPID
for ((i = 0; i < 600; i++)); do
  [[ ! -e ${CLUSTERKIT_RUN_FOLDER:-/nowhere}/usr2-0 ]] || exit 6
  sleep 0.1
done
"""


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("worker", [True, False])
def test_the_notice_to_the_batch_script_is_passed_on_and_its_step_waited_for(
    desk: Desk, worker: bool, restarts: int
) -> None:
    """By a file that workers look for, or by srun where there are none."""
    (desk.bin / "srun").write_text(NOTICED_SRUN)
    (desk.bin / "worker").write_text(
        '#!/bin/bash\nwhile [[ $1 != srun ]]; do shift; done\nexec "$@"\n'
    )
    (desk.bin / "worker").chmod(0o755)
    ours = {"CLUSTERKIT_WORKER_PYTHON": "worker", "CLUSTERKIT_RUN_FOLDER": str(desk.folder)}
    text = desk.render(restarts=restarts)["job.sbatch"]
    assert "#SBATCH --signal=B:USR2@90\n" in text
    done = desk.sbatch(text, **(ours if worker else {}))
    assert (done.returncode, done.stdout) == ((6, "") if worker else (5, "told\n")), done.stderr


def test_the_ranks_that_srun_starts_itself_get_the_notice_of_slurm(desk: Desk) -> None:
    """No worker is there to pass it on; and a signal that was asked for is left as it is."""
    srun = {"framework": "mpi", "launcher_options": {"launcher": "srun"}}
    assert "#SBATCH --signal=USR2@90\n" in desk.render(**srun)["job.sbatch"]
    own = desk.render(sbatch_options={"signal": "USR1@60"})["job.sbatch"]
    assert "#SBATCH --signal=USR1@60\n" in own


def test_a_requeued_job_stops_after_the_allowed_attempts(desk: Desk) -> None:
    text = desk.render(requeue=1)["job.sbatch"]
    assert desk.sbatch(text, SLURM_RESTART_COUNT="1").returncode == 0
    refused = desk.sbatch(text, SLURM_RESTART_COUNT="2")
    assert refused.returncode == 1
    assert "--requeue 1" in refused.stderr


def test_a_start_that_slurm_counts_and_nothing_ran_in_is_no_attempt(desk: Desk) -> None:
    """As where a node did not boot: 1 and 2 of 0 to 4."""
    text = desk.render(requeue=1)["job.sbatch"]
    run = desk.folder / "a run"
    run.mkdir()
    # What its worker would be, which is not wanted here
    given = {"CLUSTERKIT_RUN_FOLDER": str(run), "CLUSTERKIT_WORKER_PYTHON": "true"}
    for start, attempt in ((0, 0), (3, 1)):
        done = desk.sbatch(
            text.replace("\nCK_SLOTS=", "\necho $CK_RESTART_COUNT\nCK_SLOTS="),
            SLURM_RESTART_COUNT=str(start),
            **given,
        )
        assert done.stdout.split()[-1] == str(attempt), done.stderr
    refused = desk.sbatch(text, SLURM_RESTART_COUNT="4", **given)
    assert refused.stderr == "attempt 3: --requeue 1 allows no more\n"


def test_once_it_runs_slurm_may_not_put_a_job_back_whose_nodes_had_to_boot(desk: Desk) -> None:
    """Where Slurm refuses that, what runs a second time ends at once."""
    text = desk.render(boots=True)["job.sbatch"]
    refuses = '[ "$1" != update ] || { echo "$@" >>"$SEEN/told"; exit 1; }\n'
    (desk.bin / "scontrol").write_text(FAKE_SCONTROL + refuses)
    given = {"CLUSTERKIT_RUN_FOLDER": str(desk.folder), "CLUSTERKIT_WORKER_PYTHON": "true"}
    done = desk.sbatch(
        text.replace("\nCK_SLOTS=", "\necho $CK_RESTART_COUNT\nCK_SLOTS="),
        SLURM_RESTART_COUNT="2",
        **given,
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert (desk.folder / "told").read_text() == "update JobId=1234 Requeue=0\n"
    again = desk.sbatch(text, SLURM_RESTART_COUNT="3", **given)
    assert (again.returncode, again.stderr) == (1, "attempt 2: --requeue 0 allows no more\n")


def test_set_up_lines_of_the_site_run_before_the_command(desk: Desk) -> None:
    setup = ("export FROM_SITE=yes", "false", "export UNSET_IS_FINE=$NOT_SET")
    done = desk.sbatch(desk.render(cluster={"setup": setup})["job.sbatch"])
    assert done.returncode == 0, done.stderr
    assert desk.seen(0)["env"]["FROM_SITE"] == "yes"


def test_cores_are_shared_between_ranks_unless_told_otherwise(desk: Desk) -> None:
    desk.sbatch(desk.render()["job.sbatch"])
    shared = len(os.sched_getaffinity(0)) // 2
    assert desk.seen(0)["env"]["OMP_NUM_THREADS"] == str(max(1, shared))
    desk.sbatch(desk.render()["job.sbatch"], OMP_NUM_THREADS="5")
    assert desk.seen(0)["env"]["OMP_NUM_THREADS"] == "5"


TRACKERS = (
    "WANDB_NAME", "WANDB_RUN_ID", "WANDB_RESUME", "WANDB_TAGS", "WANDB_RUN_GROUP",
    "MLFLOW_RUN_CONTEXT", "TENSORBOARD_LOGGING_DIR",
)  # fmt: skip


def test_trackers_know_the_run_unless_told_otherwise(desk: Desk) -> None:
    run = f"{'x' * 60}-20261129-011500-d03f56"
    given = {"CK_RUN": run, "CK_RESULTS": str(desk.folder), "WANDB_TAGS": "of,the,shell"}
    env = {"WANDB_NAME": "mine", "WANDB_RESUME": ""}
    text = desk.render(env=env, name="a" * 70)["job.sbatch"]
    done = desk.sbatch(text, CK_ARRAY="array-0a1b2c", **given)
    assert done.returncode == 0, done.stderr
    seen = desk.seen(0)["env"]
    assert [seen.get(name) for name in TRACKERS[:5]] == [
        "mine", "20261129-011500-d03f56", None, "of,the,shell", "array-0a1b2c",
    ]  # fmt: skip
    assert json.loads(seen["MLFLOW_RUN_CONTEXT"]) == {
        "mlflow.runName": run, "job": "a" * 70, "cluster": "fake", "framework": "torchrun",
    }  # fmt: skip
    assert seen["TENSORBOARD_LOGGING_DIR"] == f"{desk.folder}/tensorboard"
    ours = {name for name in TRACKERS if seen.get(f"CK_DEFAULT_{name}") == seen.get(name, "")}
    assert ours == {"WANDB_RUN_ID", "WANDB_RUN_GROUP", *TRACKERS[5:]}

    del given["WANDB_TAGS"]
    desk.sbatch(desk.render(name="a" * 70)["job.sbatch"], **given)
    again = desk.seen(0)["env"]
    assert again["WANDB_TAGS"] == f"{'a' * 64},fake,torchrun"
    assert (again["WANDB_NAME"], again["WANDB_RESUME"]) == (run, "allow")
    assert "WANDB_RUN_GROUP" not in again


def test_the_node_script_runs_by_hand(desk: Desk) -> None:
    (desk.folder / "node.sh").write_text(desk.render(kind=ClusterKind.LOCAL)["node.sh"])
    environment = desk.environment("", 0, CK_NODES="host1 host2", CK_NODE_RANK="1")
    del environment["SLURM_JOB_ID"]
    subprocess.run(["bash", desk.folder / "node.sh"], env=environment, check=True, timeout=60)
    argv = desk.seen(1)["argv"]
    assert {"--nnodes=2", "--node-rank=1", "--master-addr=host1"} <= set(argv)
    assert not set(TRACKERS) & desk.seen(1)["env"].keys()


def test_a_termination_reaches_the_command_at_once(desk: Desk) -> None:
    (desk.folder / "node.sh").write_text(desk.render(kind=ClusterKind.LOCAL)["node.sh"])
    environment = desk.environment("", 0, SLEEP="300")
    argv = ["bash", desk.folder / "node.sh"]
    process = subprocess.Popen(argv, env=environment, start_new_session=True)
    while not (desk.folder / "0.json").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR2)  # ahead of the time limit: not deadly
    time.sleep(0.2)
    assert process.poll() is None
    for _ in range(2):  # as Slurm at a time limit: to all of the step, and of the job
        os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=120) == 128 + signal.SIGTERM, "by itself it ends much later"
