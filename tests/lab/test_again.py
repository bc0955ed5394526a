"""Jobs that start again on the practice cluster: time limits, lost nodes, spares."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterkit.executors.run import node_results, restarts
from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers import lab_scripts
from tests.helpers.desk import ROOT, Desk
from tests.helpers.faults import cut_off
from tests.helpers.lab_faults import DOUBLES, full_shared_memory, gpus, metadata_service
from tests.helpers.lab_jobs import Cluster, await_true, one_process, started
from tests.lab import Lab

pytestmark = pytest.mark.lab

ROUNDS = int(os.environ.get("CLUSTERKIT_FAULT_ROUNDS", "1"))
RESTARTS = {"nodes": 2, "restarts": 1, "requeue_on": "failure"}
ATTEMPT = "echo attempt $CK_RESTART_COUNT on $CK_NODES; ((CK_RESTART_COUNT)) || sleep 300"


@pytest.fixture
def cluster(lab: Lab, tmp_path: Path) -> Cluster:
    return Cluster(lab, tmp_path, kind="ssh")


def supervised(cluster: Cluster, run: RunFolder) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "clusterkit", "supervise", run.run_id]
    return cluster.lab.popen("head", argv, env=cluster.environment, cwd=Path.cwd())


def ended(cluster: Cluster, run: RunFolder) -> tuple[str, str | None]:
    document = json.loads(cluster.ck("status", run.run_id, "--json")[1])
    await_true(lambda: not cluster.left(run))
    return document["state"], document["reason"]


def said_by(run: RunFolder, words: str, *, nodes: int) -> bool:
    return all(run.log(k).exists() and words in run.log(k).read_text() for k in range(nodes))


def test_a_node_without_power_is_replaced_by_a_spare(cluster: Cluster) -> None:
    run = cluster.submit(ATTEMPT, nodes=2, requeue=1, spares=1)
    await_true(started(run, nodes=2))
    with supervised(cluster, run) as client:
        cluster.lab.kill_host("n2")
        try:
            assert client.wait(90) == 0, client.stderr and client.stderr.read()
        finally:
            cluster.lab.up()
    assert ended(cluster, run) == ("succeeded", None)
    shown = cluster.ck("status", run.run_id)[1]
    assert re.search(r"attempt 1 of at most 2\n +n1 +exit \d+", shown), shown
    assert re.search(r"attempt 2 of at most 2\n +n\[1,3\] +exit 0", shown), shown
    said = run.log(1).read_text().splitlines()
    assert said[0] == "attempt 0 on n1 n2"
    assert said[-1] == "attempt 1 on n1 n3"


@pytest.mark.timeout(600 * ROUNDS)
@pytest.mark.parametrize("kind", ["slurm", "ssh"])
@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (3, r"n1 (has lost its network|no longer answers)"),
        (2, "n1 and n2 lost each other: .*"),
    ],
)
def test_a_first_node_without_its_network_is_replaced_by_a_spare(
    own_lab: Lab, kind: str, nodes: int, words: str
) -> None:
    """The others are used again; of two nodes none is blamed alone."""
    for _ in range(ROUNDS):
        own_lab.up(nodes=5)
        told, names = without_its_first_node(Cluster(own_lab, own_lab.shared, kind), nodes)
        own_lab.down()
        assert re.fullmatch(words, told)
        assert {"n2", "n3", "n4"} >= names >= {f"n{k}" for k in range(2, nodes + 1)}


def without_its_first_node(cluster: Cluster, nodes: int) -> tuple[str, set[str]]:
    """Cut off n1 from a job; return why its first attempt failed, and where the second ran."""
    run = cluster.submit(ATTEMPT, nodes=nodes, requeue=1, spares=1)
    await_true(started(run, nodes=nodes))
    began = time.monotonic()
    with cut_off(cluster.lab, "n1"), supervised(cluster, run) as client:
        await_true(lambda: node_results.first_failure(run, 0) is not None, 90)
        noticed_s = time.monotonic() - began
        assert client.wait(150) == 0, client.stderr and client.stderr.read()
    # Slurm itself ends its script there once it has noticed that the node is back.
    await_true(lambda: all(re.search("slurm_script$|^srun ", x) for x in cluster.left(run)))
    assert cluster.state(run) == ("succeeded", 0)
    assert node_results.left_out(run) == frozenset()  # once is not twice
    failure = node_results.first_failure(run, 0)
    assert failure is not None
    told = node_results.failure_text(failure)
    names = run.log(0).read_text().splitlines()[-1].removeprefix("attempt 1 on ").split()
    print(f"{told}, after {noticed_s:.0f} s; then on {' '.join(names)}")
    return told, set(names)


def test_a_node_that_is_told_to_end_ends_the_attempt_and_not_the_job(cluster: Cluster) -> None:
    run = cluster.submit(ATTEMPT, requeue=1)
    await_true(started(run))
    agent = one_process(cluster.lab, "n2", f"ssh[.]agent .*{run.run_id}")
    os.kill(agent.pid, signal.SIGTERM)
    await_true(lambda: cluster.state(run)[0] == "requeued")
    reason = ended(cluster, run)[1]
    assert reason == "n2 was told to end (SIGTERM); attempt 2 of 2"
    clients = [supervised(cluster, run) for _ in range(2)]
    assert [client.wait(60) for client in clients] == [0, 0]
    assert ended(cluster, run) == ("succeeded", None)
    assert run.log(2).read_text().count("attempt 1") == 1


def test_what_the_script_does_is_no_reason_to_start_again(cluster: Cluster) -> None:
    run = cluster.submit("sleep 1; exit $((7 * (CK_NODE_RANK == 1)))", requeue=3)
    assert cluster.ck("wait", run.run_id)[0] == 1
    assert ended(cluster, run) == ("failed", "n2 exited with 7")


def test_a_node_lost_twice_without_a_spare_ends_the_job(cluster: Cluster) -> None:
    run = cluster.submit("echo attempt $CK_RESTART_COUNT; sleep 300", requeue=5)
    with supervised(cluster, run) as client:
        for attempt in range(2):
            await_true(lambda wanted=f"attempt {attempt}": said_by(run, wanted, nodes=3))
            agent = one_process(cluster.lab, "n2", f"ssh[.]agent .*{run.run_id}")
            os.kill(agent.pid, signal.SIGTERM)
        assert client.wait(90) == 1
    assert ended(cluster, run) == ("failed", "n2 was told to end (SIGTERM)")
    assert sorted(path.name for path in run.failures.iterdir()) == ["0.json", "1.json"]


@pytest.mark.parametrize("kind", ["slurm", "ssh"])
def test_a_job_that_is_cancelled_while_it_restarts_is_over(
    lab: Lab, tmp_path: Path, kind: str
) -> None:
    """At any moment from the failure on."""
    cluster = Cluster(lab, tmp_path, kind)
    for after_s in (0.0, 4.0, 8.0)[: ROUNDS + 1]:
        run = cluster.submit("echo on; ((CK_RESTART_COUNT)) || exit 7; sleep 300", **RESTARTS)
        with supervised(cluster, run) as client:
            await_true(lambda run=run: node_results.first_failure(run, 0) is not None)
            time.sleep(after_s)
            cluster.ck("cancel", run.run_id)
            assert client.wait(60) == 1
        assert ended(cluster, run) == ("cancelled", None), run.path


def test_the_time_limit_of_a_restarted_job_is_that_of_its_allocation(
    lab: Lab, tmp_path: Path
) -> None:
    """And after it the queue comes, with the next number."""
    cluster = Cluster(lab, tmp_path, "slurm")
    body = "echo on; case $CK_RESTART_COUNT in 0) exit 7 ;; 1) sleep 300 ;; esac"
    run = cluster.submit(body, **RESTARTS, requeue=1, time="1")
    assert cluster.ck("wait", run.run_id, timeout_s=180)[0] == 0
    found = node_results.read_attempts(run)
    assert [one.attempt for one in found] == [0, 1, 2]
    assert {result.reason for result in found[1].nodes} == {"timeout"}
    assert restarts.count(run, 2) == 1


@pytest.mark.parametrize("kind", ["slurm", "ssh"])
def test_a_loop_of_restarts_ends_by_itself(lab: Lab, tmp_path: Path, kind: str) -> None:
    """It pauses in between, and says so; of two that watch it, one starts each attempt."""
    cluster = Cluster(lab, tmp_path, kind)
    body = "echo on; sleep 1; ((!CK_NODE_RANK)) || sleep 9; exit $((7 + CK_RESTART_COUNT))"
    run = cluster.submit(body, **{**RESTARTS, "restarts": 2})
    with supervised(cluster, run) as client, supervised(cluster, run) as other:
        assert (client.wait(120), other.wait(120)) == (1, 1)
        heard = "".join(one.stderr.read() for one in (client, other) if one.stderr)
    assert ended(cluster, run) == ("failed", "n1 exited with 9")
    assert run.log(0).read_text().splitlines().count("on") == 3
    if kind == "slurm":
        heard = next(run.submitit.glob("*_batch.out")).read_text()
    assert "attempt 3 of 3 after a pause of" in heard
    assert [restarts.count(run, attempt) for attempt in range(4)] == [0, 1, 2, 2]


DIES = """
import os, pathlib, signal, time
attempt = int(os.environ["CK_RESTART_COUNT"])
ranks = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "RANK")
rank = next(os.environ[name] for name in ranks if name in os.environ)
os.write(1, f"rank {rank} of attempt {attempt}\\n".encode())
logs = pathlib.Path(os.environ["CK_RESULTS"]).parent / "logs"

def said():
    return "".join(log.read_text() for log in logs.iterdir())

# Their launchers pass on what they said.
while not attempt and not all(f"rank {one} of attempt 0" in said() for one in "01"):
    time.sleep(0.1)
if rank == "1" and not attempt:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0 if attempt else 300)
"""


@pytest.mark.parametrize(
    ("kind", "framework"),
    [("lab", "torchrun"), ("rack", "deepspeed"), ("lab", "horovod"), ("rack", "mpi")],
)
def test_every_launcher_starts_again_in_its_allocation(
    desk: Desk, kind: str, framework: str
) -> None:
    """A rank that is killed leaves launchers that wait, on nodes that are asked for anew."""
    script = desk.write("dies.py", DIES)
    done = desk.submit(
        *("--cluster", kind, "--framework", framework, "--nodes", "2", "--gpus-per-node", "1"),
        *("--restarts", "1", "--requeue-on", "failure", "--time", "5", "--preflight", "off"),
        *("--wait", script),
        env={"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "DS_ACCELERATOR": "cpu"},
        timeout_s=240,
    )
    run = RunFolder(Path(done["run_dir"]))
    said = "".join(run.log(k).read_text() for k in range(2) if run.log(k).exists())
    assert (done["state"], done["exit_code"]) == ("succeeded", 0), said
    assert len(node_results.read_attempts(run)) == 2
    assert restarts.count(run, 1) == 1
    for attempt in range(2):
        assert all(f"rank {rank} of attempt {attempt}" in said for rank in range(2)), said


def losses(text: str) -> dict[int, float]:
    return {
        int(step): float(loss)
        for step, loss in re.findall(r"^step (\d+) loss (\S+)", text, re.MULTILINE)
    }


@pytest.mark.parametrize("kind", ["rack", "lab"])
def test_after_the_time_limit_training_goes_on_where_it_was(desk: Desk, kind: str) -> None:
    # Two nodes that import torch take half a minute on a busy machine, and more than one on a slow
    # one. Over ssh, where it is the notice that comes another way, a script without torch trains.
    slow = lab_scripts.slowly(ROOT / "examples/train_ddp.py", pause_s=0.2)
    script = desk.write("train_ddp.py", slow if kind == "lab" else lab_scripts.TRAINS)
    minutes = "2" if kind == "lab" else "1"
    document = desk.submit(
        *("--cluster", kind, "--framework", "torchrun", "--nodes", "2", "--gpus-per-node", "1"),
        *("--time", minutes, "--requeue", "1", "--preflight", "off"),
        *(script, "--steps", "20000", "--log-every", "1"),
        *("--checkpoint-dir", "saved", "--checkpoint-every", "100000"),
    )
    log = RunFolder(Path(document["run_dir"])).log(0)
    await_true(log.exists)
    argv = [sys.executable, "-m", "clusterkit", "logs", "-f", document["job_id"]]
    with desk.lab.popen("head", argv, env=desk.environment(), cwd=desk.folder):
        await_true(lambda: len(losses(log.read_text().partition("restart 1 on")[2])) > 5, 300)
        assert desk.clusterkit("cancel", document["job_id"]).returncode == 0
    first, second = log.read_text().split("restart 1 on")
    saved = int(re.findall(r"notice: saving after step (\d+)", first)[-1])
    assert f"resume: step {saved} from saved" in second
    before, after = losses(first), losses(second)
    assert min(after) == saved + 1
    # What was trained between the notice and the end is trained again, to the same loss.
    again = before.keys() & after.keys()
    assert all(before[step] == pytest.approx(after[step], abs=2e-3) for step in again)
    assert after[max(after)] < before[min(before)] - 0.5
    assert desk.state(document["job_id"]) == "cancelled"


def test_an_unfit_node_of_slurm_is_replaced_by_a_spare(desk: Desk) -> None:
    script = desk.write("job.py", 'import os; print("on", os.environ["CK_NODES"])')
    words = ("--framework", "env", "--nodes", "2", "--gpus-per-node", "1", "--time", "2")
    with full_shared_memory(desk.lab, "n1"):
        done = desk.submit(
            *("--requeue", "1", "--spares", "1", "--preflight", "full", "--force", "--wait"),
            *(*words, script),
            timeout_s=120,
        )
    assert (done["state"], done["exit_code"]) == ("succeeded", 0)
    run = RunFolder(Path(done["run_dir"]))
    assert run.log(0).read_text().splitlines()[-1] == "on n2 n3"
    assert "n1 is unhealthy" in run.requeued(0).read_text()


TOLD = """
import os, pathlib, signal, time
signal.signal(signal.SIGUSR2, lambda *_: print("told on", os.environ["CK_NODE_NAME"], flush=True))
print("attempt", os.environ["CK_RESTART_COUNT"], flush=True)
while not pathlib.Path("enough").exists():
    time.sleep(0.1)
"""


def test_a_spot_machine_that_its_cloud_takes_gives_the_job_back_after_its_ranks_were_told(
    desk: Desk, tmp_path: Path
) -> None:
    """All of them, though one machine alone has heard of it."""
    script = desk.write("told.py", TOLD)
    firmware = tmp_path / "machine/sys/class/dmi/id/product_name"
    firmware.parent.mkdir(parents=True)
    firmware.write_text("Google Compute Engine\n")
    service = tmp_path / "service/computeMetadata/v1/instance/preempted"
    service.parent.mkdir(parents=True)
    service.write_text("FALSE")
    words = ("--framework", "env", "--nodes", "2", "--gpus-per-node", "1", "--preflight", "off")
    with metadata_service(desk.lab, "n2", tmp_path / "service"):
        done = desk.submit(
            *("--exclude", "n3", "--requeue", "1", "--time", "5", *words, script),
            env={"CLUSTERKIT_MACHINE_ROOT": str(tmp_path / "machine")},
        )
        run = RunFolder(Path(done["run_dir"]))
        await_true(lambda: said_by(run, "attempt 0", nodes=2))
        service.write_text("TRUE")
        await_true(lambda: said_by(run, "told on", nodes=2), 15)
        await_true(run.requeued(0).exists, 40)
    (desk.folder / "enough").touch()
    assert "n2: GCP takes back the Spot VM at" in run.requeued(0).read_text()
    assert desk.clusterkit("wait", done["job_id"], timeout_s=200).returncode == 0
    first, second = node_results.read_attempts(run)
    assert {node.reason for node in first.nodes} == {"preempted"}
    assert [node.exit_code for node in second.nodes] == [0, 0]


FAILS = """
import os, pathlib, time
node, attempt = os.environ["CK_NODE_NAME"], int(os.environ["CK_RESTART_COUNT"])
print("on", node, flush=True)
pathlib.Path(f"on-{node}").touch()
while not attempt and not pathlib.Path("broken").exists():
    time.sleep(0.1)
if not attempt and os.environ["CK_NODE_RANK"] == "0":
    raise RuntimeError("NCCL error: remote process exited or there was a network error")
time.sleep(0 if attempt else 300)
"""


@pytest.mark.parametrize("kind", ["lab", "rack"])
def test_a_node_whose_gpu_breaks_in_the_middle_is_replaced_by_a_spare(
    desk: Desk, tmp_path: Path, kind: str
) -> None:
    """Though it is another one that fails of it: each node looks at itself then.

    And is taken out by the command of the site.
    """
    script = desk.write("fails.py", FAILS)
    out = desk.write("out.sh", f'echo "$*" >>{desk.folder}/out.log')
    config = (desk.folder / "clusterkit.yaml").read_text()
    drains = f"    drain_command: sh {desk.folder}/{out} {{node}} {{reason}}\n    run_dir:"
    (desk.folder / "clusterkit.yaml").write_text(config.replace("    run_dir:", drains))
    words = ("--cluster", kind, "--framework", "env", "--nodes", "2", "--gpus-per-node", "1")
    with gpus(desk.lab, tmp_path, **dict.fromkeys(desk.lab.nodes, "healthy8")):
        done = desk.submit(*words, "--time", "5", "--requeue", "1", "--spares", "1", script)
        first, second, third = desk.lab.nodes
        await_true(lambda: all((desk.folder / f"on-{node}").exists() for node in (first, second)))
        breaks(tmp_path, second)
        (desk.folder / "broken").touch()
        assert desk.clusterkit("wait", done["job_id"], timeout_s=120).returncode == 0
    run = RunFolder(Path(done["run_dir"]))
    before, after = node_results.read_attempts(run)
    assert [node.node for node in after.nodes] == [first, third]
    assert [bool(node.fault) for node in before.nodes] == [False, True]
    assert before.nodes[0].rank == 0
    shown = desk.clusterkit("status", done["job_id"]).stdout
    assert re.search(rf"  {second}  exit 1 \(GPU0.*; drained\)", shown), shown
    (taken,) = (desk.folder / "out.log").read_text().splitlines()
    assert taken.startswith(f"{second} GPU0")


def breaks(folder: Path, host: str) -> None:
    """Let the GPU of a host of `gpus` be sick from now on."""
    shutil.rmtree(folder / host / "gpus")
    shutil.copytree(DOUBLES / "gpus/sick8", folder / host / "gpus")


FAILS_ALWAYS = """
import os, pathlib, time
node, attempt = os.environ["CK_NODE_NAME"], os.environ["CK_RESTART_COUNT"]
pathlib.Path(f"on-{node}-{attempt}").touch()
while not pathlib.Path(f"broken-{attempt}").exists():
    time.sleep(0.1)
if os.environ["CK_NODE_RANK"] == "0":
    raise RuntimeError("NCCL error: remote process exited or there was a network error")
time.sleep(300)
"""


@pytest.mark.parametrize("kind", ["lab", "rack"])
@pytest.mark.parametrize("at_once", [True, False], ids=["sick-too", "used-up"])
def test_where_no_healthy_spare_is_left_the_job_ends_of_the_last_that_broke(
    desk: Desk, tmp_path: Path, kind: str, at_once: bool
) -> None:
    """A spare looks at itself before it starts; one that breaks later was the last."""
    script = desk.write("fails.py", FAILS_ALWAYS)
    words = ("--cluster", kind, "--framework", "env", "--nodes", "2", "--gpus-per-node", "1")
    first, second, third = desk.lab.nodes
    with gpus(desk.lab, tmp_path, **dict.fromkeys(desk.lab.nodes, "healthy8")):
        done = desk.submit(*words, "--time", "5", "--restarts", "3", "--spares", "1", script)
        argv = [sys.executable, "-m", "clusterkit", "wait", done["job_id"]]
        with desk.lab.popen("head", argv, env=desk.environment(), cwd=desk.folder) as client:
            for attempt, broken in enumerate(
                [(second, third)] if at_once else [(second,), (third,)]
            ):
                on = [desk.folder / f"on-{node}-{attempt}" for node in (first, broken[0])]
                await_true(lambda on=on: all(path.exists() for path in on))
                for host in broken:
                    breaks(tmp_path, host)
                (desk.folder / f"broken-{attempt}").touch()
            assert client.wait(120) == 1
    before, last = node_results.read_attempts(RunFolder(Path(done["run_dir"])))
    assert [node.node for node in before.nodes if node.found] == [second]
    assert {node.node for node in last.nodes} == {first, third}
    assert [node.node for node in last.nodes if node.found] == [third]
    assert desk.state(done["job_id"]) == "failed"
    shown = desk.clusterkit("status", done["job_id"]).stdout
    assert re.search(rf"{third}.*GPU008", shown), shown
    assert "no spare is left" in shown


SAYS = """
import os, pathlib, time
node, attempt = os.environ["CK_NODE_NAME"], int(os.environ["CK_RESTART_COUNT"])
print("on", node, flush=True)
second = os.environ["CK_NODE_RANK"] == "1"
if not second:
    print("step 40 loss 1.5", flush=True)
    pathlib.Path(f"step-{attempt}").touch()
    time.sleep(1)
if second and (not attempt or "LIES" in os.environ):
    while not pathlib.Path(f"step-{attempt}").exists():
        time.sleep(0.1)
    time.sleep(2)
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
time.sleep(300 if not attempt or "LIES" in os.environ else 0)
"""


@pytest.mark.parametrize("kind", ["lab", "rack"])
@pytest.mark.parametrize("lies", [False, True])
def test_a_node_that_its_output_blames_is_replaced_by_a_spare(
    desk: Desk, kind: str, lies: bool
) -> None:
    """Once: output that says the same of another node at the same step is the script's doing."""
    script = desk.write("says.py", SAYS)
    words = ("--cluster", kind, "--framework", "env", "--nodes", "2", "--gpus-per-node", "1")
    done = desk.submit(
        *(*words, "--time", "5", "--requeue", "5", "--spares", "1", "--preflight", "off"),
        *(("--env", "LIES=1") if lies else ()),
        script,
    )
    code = desk.clusterkit("wait", done["job_id"], timeout_s=120).returncode
    run = RunFolder(Path(done["run_dir"]))
    before, after = node_results.read_attempts(run)
    first, second, third = desk.lab.nodes
    assert [node.node for node in after.nodes] == [first, third]
    assert [node.rule for node in before.nodes if node.fault] == ["gpu-ecc"]
    shown = json.loads(desk.clusterkit("status", done["job_id"], "--json").stdout)
    assert code == shown["exit_code"] == lies
    said = desk.clusterkit("status", done["job_id"]).stdout
    assert f"  {second}  exit 1 (its output says: a GPU has a fault" in said, said
    if lies:
        assert shown["reason"].endswith("as in the attempt before, at step 40")


RAISES = """
import os, time
attempt = int(os.environ["CK_RESTART_COUNT"])
print(f"step {40 + 10 * min(attempt, 1)} loss 1.5", flush=True)
time.sleep(2)
if os.environ["CK_NODE_RANK"] == "1":
    raise ValueError("no such column")
time.sleep(300)
"""


@pytest.mark.parametrize("kind", ["lab", "rack"])
def test_after_any_failure_until_it_gets_no_further(desk: Desk, kind: str) -> None:
    script = desk.write("raises.py", RAISES)
    words = ("--cluster", kind, "--framework", "env", "--nodes", "2", "--gpus-per-node", "1")
    done = desk.submit(
        *(*words, "--time", "5", "--requeue", "5", "--requeue-on", "failure", script)
    )
    assert desk.clusterkit("wait", done["job_id"], timeout_s=200).returncode == 1
    run = RunFolder(Path(done["run_dir"]))
    found = node_results.read_attempts(run)
    assert [max(node.step or 0 for node in one.nodes) for one in found] == [40, 50, 50]
    assert node_results.left_out(run) == frozenset()
    shown = json.loads(desk.clusterkit("status", done["job_id"], "--json").stdout)
    assert shown["reason"].endswith("exited with 1; as in the attempt before, at step 50")


def test_an_unfit_node_of_slurm_is_not_given_again(desk: Desk) -> None:
    """A client that looks on tells Slurm, and status tells the user."""
    script = desk.write("job.py", 'import os; print("on", os.environ["CK_NODES"])')
    words = ("--framework", "env", "--nodes", "2", "--gpus-per-node", "1", "--time", "2")
    with full_shared_memory(desk.lab, "n1"):
        done = desk.submit(
            *("--requeue", "1", "--preflight", "full", "--force", "--wait"), *words, script
        )
    assert (done["state"], done["exit_code"]) == ("succeeded", 0)
    run = RunFolder(Path(done["run_dir"]))
    assert run.log(0).read_text().splitlines()[-1] == "on n2 n3"


SERVICE = """\
#!/bin/bash
# srun of a service that runs a step again if it fails, where it is told to.
words=() again=
for word in "$@"; do
  if [[ $word == --auto-resume=1 ]]; then again=1; else words+=("$word"); fi
done
{real} "${{words[@]}}" || {{ [[ -n $again ]] && exec {real} "${{words[@]}}"; }}
"""
BREAKS = """
import os
print("attempt", os.environ["CK_RESTART_COUNT"], flush=True)
if os.environ["CK_NODE_RANK"] == "1" and os.environ["CK_RESTART_COUNT"] == "0":
    raise ValueError("a broken node")
"""


def test_a_step_that_hyperpod_runs_again_is_another_attempt(desk: Desk) -> None:
    config = (desk.folder / "clusterkit.yaml").read_text()
    hyperpod = config.replace("kind: slurm\n", "kind: slurm\n    platform: aws-hyperpod\n")
    desk.write("clusterkit.yaml", hyperpod)
    real = desk.lab.run("head", ["sh", "-c", "command -v srun"]).stdout.strip()
    desk.write("srun", SERVICE.format(real=real))
    (desk.folder / "srun").chmod(0o755)
    path = f"{desk.folder}:{desk.lab.env()['PATH']}"
    words = ("--framework", "env", "--nodes", "2", "--gpus-per-node", "1", "--preflight", "off")
    done = desk.submit(*words, "--wait", desk.write("breaks.py", BREAKS), env={"PATH": path})
    assert (done["state"], done["returncode"]) == ("succeeded", 0)
    first, second = done["attempts"]
    assert [node["exit_code"] for node in second["nodes"]] == [0, 0]
    assert 1 in [node["exit_code"] for node in first["nodes"]]
    log = RunFolder(Path(done["run_dir"])).log(1).read_text()
    assert "attempt 0\n" in log
    assert log.endswith("attempt 1\n")
    directives = RunFolder(Path(done["run_dir"])).sbatch.read_text()
    assert "#SBATCH --exclusive\n" in directives
