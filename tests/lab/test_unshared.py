"""Machines reached by ssh that share no file system: prepared, and running jobs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import processes
from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers.desk import ROOT, Desk, read_to_end
from tests.helpers.lab_apart import OURS, desk_apart, homes_apart, tiny_wheel, wheelhouse
from tests.helpers.lab_faults import mounted, slow_link, wait_for_state
from tests.helpers.lab_jobs import Cluster, await_true, is_soon, one_process
from tests.lab import Lab
from tests.lab.lab import UNSCALED

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheelhouse(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def apart(lab: Lab, wheels: Path) -> Iterator[Desk]:
    """Give a desk whose three hosts share nothing, and have been prepared."""
    with homes_apart(lab, lab.nodes):
        shutil.rmtree(lab.shared / "desks" / "apart", ignore_errors=True)
        desk = desk_apart(lab, "apart")
        done = desk.clusterkit("nodes", "prepare", "-c", "apart", "--wheels", str(wheels))
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.split(maxsplit=2)[:2] == ["n[1-3]", "ready"]
        yield desk


def test_prepared_nodes_are_left_alone(apart: Desk, wheels: Path) -> None:
    words = ("nodes", "prepare", "-c", "apart", "--wheels", str(wheels))
    done = apart.clusterkit(*words)
    assert done.returncode == 0
    assert done.stdout.startswith("n[1-3]  up to date  Python 3.")
    (wheel,) = wheels.glob("clusterkit_launch-*.whl")
    # With other ingredients they are made anew, on the named hosts alone.
    done = apart.clusterkit(
        "nodes", "prepare", "-c", "apart", "--hosts", "n2", "--wheels", str(wheel), "--json"
    )
    (node,) = json.loads(done.stdout)["nodes"]
    assert (node["node"], node["readiness"]) == ("n2", "ready"), done.stdout
    assert apart.clusterkit(*words).stdout.splitlines()[0].startswith("n[1,3]  up to date")


def test_requirements_are_installed_as_well(apart: Desk, wheels: Path, tmp_path: Path) -> None:
    extra = tiny_wheel(tmp_path / "more", "ckextra")
    listed = tmp_path / "requirements.txt"
    listed.write_text("# what the training needs\nckextra==1.0\n")
    words = ("nodes", "prepare", "-c", "apart", "--hosts", "n3", "-r", str(listed), "--json")
    missing = apart.clusterkit(*words, "--wheels", str(wheels))
    (node,) = json.loads(missing.stdout)["nodes"]
    assert (missing.returncode, node["readiness"]) == (1, "failed")
    assert "ckextra" in node["detail"]
    done = apart.clusterkit(*words, "--wheels", str(wheels), "--wheels", str(extra))
    (node,) = json.loads(done.stdout)["nodes"]
    assert (node["node"], node["readiness"]) == ("n3", "ready"), done.stdout
    answer = apart.lab.run(
        "n3", [f"{OURS}/venv/bin/python", "-c", "import ckextra; print(ckextra.HELLO)"]
    )
    assert answer.stdout == "hello\n"


@pytest.fixture
def cluster(apart: Desk, tmp_path: Path) -> Iterator[Cluster]:
    yield Cluster(apart.lab, tmp_path, kind="ssh")
    for host in apart.lab.nodes:  # their disks are small
        apart.lab.run(host, ["rm", "-rf", f"{OURS}/runs", f"{OURS}/sync"], check=True)


APART = {"shared": False, "script": "/etc/hostname"}
"""A job of such hosts; they all have this file, as jobs without a copy need their script."""


def running(cluster: Cluster, body: str, **options: Any) -> RunFolder:
    """Submit a job, and wait until every node has said something."""
    run = cluster.submit(body, **{**APART, **options})
    await_true(lambda: len(said(cluster, run)) >= len(cluster.lab.nodes))
    return run


def said(cluster: Cluster, run: RunFolder) -> list[str]:
    return cluster.ck("logs", run.run_id)[1].splitlines()


def ended(cluster: Cluster, run: RunFolder) -> tuple[str, str | None]:
    """Return the state of a job once it is over, and why, with no process of it left."""
    document = cluster.over(run)
    await_true(lambda: not cluster.left(run))
    return document["state"], document["reason"]


def test_a_cancel_leaves_nothing(cluster: Cluster) -> None:
    run = running(cluster, "echo asleep; sleep 300")
    assert said(cluster, run) == [f"[node-{rank} n{rank + 1}] asleep" for rank in range(3)]
    assert cluster.state(run) == ("running", None)
    assert cluster.ck("cancel", run.run_id)[0] == 0
    assert ended(cluster, run) == ("cancelled", None)


@pytest.mark.parametrize("after_s", [0.0, 1.0, 1.6, 2.4])
def test_a_cancel_during_the_start_leaves_nothing(cluster: Cluster, after_s: float) -> None:
    cluster.environment |= UNSCALED  # on a busy machine the nodes lose each other otherwise
    run, client = cluster.submitting("echo asleep; sleep 300", **APART)
    time.sleep(after_s)
    assert cluster.ck("cancel", str(run.path))[0] == 0
    client.wait(120)
    state, reason = ended(cluster, run)
    assert state == "cancelled", reason
    nodes = cluster.lab.nodes
    await_true(lambda: not any(cluster.lab.processes(node, run.run_id) for node in nodes))


def test_a_killed_rank_is_named_and_what_was_kept_comes_back(cluster: Cluster) -> None:
    keep = "echo $CK_NODE_NAME > $CK_RESULTS/name; ln -s /etc/passwd $CK_RESULTS/link; echo on"
    go = cluster.folder / "go"  # which all hosts see, as all of /tmp
    dies = f"until [[ -e {go} ]]; do sleep 0.2; done; [[ $CK_NODE_RANK != 1 ]] || kill -KILL $$"
    run = running(cluster, f"{keep}; {dies}; sleep 300")
    began = time.monotonic()
    go.touch()
    assert ended(cluster, run) == ("failed", "n2 was ended by signal 9")
    assert is_soon(cluster.lab, time.monotonic() - began)
    results = {str(p.relative_to(run.results)): p.read_text() for p in run.results.rglob("*[!0-9]")}
    assert results == {"name": "n1\n", "node-1/name": "n2\n", "node-2/name": "n3\n"}


def test_only_what_has_changed_is_sent_and_jobs_keep_their_own_copy(cluster: Cluster) -> None:
    work = cluster.folder / "work"
    (work / "deep").mkdir(parents=True)
    (work / "deep" / "data").write_text("1")
    (work / "job.py").write_text("one")
    options = {"shared": False, "sync": str(work), "script": f"{work}/job.py"}
    options |= {"slots": 2, "gpus_per_node": [1]}
    first = running(cluster, "echo on; sleep 6; cat job.py deep/data", **options)
    assert sent(first) == {"n1": 2, "n2": 2, "n3": 2}
    (work / "job.py").write_text("two")
    second = cluster.submit("cat job.py deep/data", **options)
    assert sent(second) == {"n1": 1, "n2": 1, "n3": 1}
    for run, text in ((second, "two1"), (first, "one1")):
        assert ended(cluster, run) == ("succeeded", None)
        assert all(run.log(rank).read_text().endswith(text) for rank in range(3))


def sent(run: RunFolder) -> dict[str, int]:
    """Return how many files of the folder were sent to each node."""
    document = json.loads((run.path / "sync.json").read_text())
    return {node: document[node]["files"] for node in sorted(document)}


def test_a_job_that_cannot_be_sent_starts_nowhere(cluster: Cluster) -> None:
    work = cluster.folder / "work"
    work.mkdir()
    (work / "job.py").write_text("")
    with (work / "huge.bin").open("wb") as stream:
        stream.truncate(20 << 20)
    options = {"shared": False, "sync": str(work), "script": f"{work}/job.py"}
    refused = cluster.client("true", **options, sync_limit_mib=19)
    assert f"{work}: 20.0 MiB to send, more than 19 MiB" in refused.stderr
    assert "20.0 MiB  huge.bin" in refused.stderr
    assert not list((cluster.folder / "runs").iterdir())
    for place, name in (("sync", "work"), ("runs", "job")):  # the folder, and the job's own copy
        cluster.lab.run("n2", ["mkdir", "-p", f"{OURS}/{place}"], check=True)
        on_node = (cluster.lab, "n2", "-t", "tmpfs", "-o", "size=19m,mode=0700", "small")
        with mounted(*on_node, f"{OURS}/{place}"):
            refused = cluster.client("echo started", **options)
        assert f"n2: 37 MiB are needed in /root/.clusterkit/{place}/{name}-" in refused.stderr
        assert "n1: " not in refused.stderr
    for more, why in (
        ({"script": "/nowhere/x.py"}, "n1: there is no /nowhere/x.py there"),
        ({"venv": "~/.clusterkit/none"}, "n3: ~/.clusterkit/none/bin/python cannot be run there"),
    ):
        refused = cluster.client("true", **{**APART, **more})
        assert refused.returncode != 0
        assert why in refused.stderr
    for node in cluster.lab.nodes:
        await_true(lambda node=node: not cluster.lab.processes(node, "ssh[.]agent"))


def test_homes_that_are_one_after_all_are_refused(cluster: Cluster) -> None:
    home = cluster.folder / "home"
    cluster.lab.run("n1", ["cp", "-a", OURS, str(home)], check=True)
    with ExitStack() as stack:
        for node in cluster.lab.nodes:
            stack.enter_context(mounted(cluster.lab, node, "--bind", str(home), OURS))
        refused = cluster.client("touch $CK_RESULTS/began", **APART)
    assert refused.returncode != 0
    assert "it shares the run folder with n" in refused.stderr
    assert "`shared_filesystem: false` denies it" in refused.stderr
    assert not list(cluster.folder.rglob("began"))
    for node in cluster.lab.nodes:
        await_true(lambda node=node: not cluster.lab.processes(node, "ssh[.]agent"))


def test_what_was_broken_off_is_taken_up_again(cluster: Cluster) -> None:
    work = cluster.folder / "work"
    work.mkdir()
    (work / "job.py").write_text("")
    for number in range(8):
        (work / f"{number}.bin").write_bytes(os.urandom(2 << 20))
    options = {"shared": False, "sync": str(work), "script": f"{work}/job.py"}
    with ThreadPoolExecutor(1) as pool, slow_link(cluster.lab, "head", "50mbit"):
        client = pool.submit(cluster.client, "echo started", **options)
        arrived = f"{OURS}/sync/work-*/2.bin"
        await_true(lambda: cluster.lab.run("n3", ["sh", "-c", f"ls {arrived}"]).returncode == 0)
        for process in cluster.lab.processes("n3", "python.* -X utf8 -c"):
            processes.send(process.pid, signal.SIGKILL)
        refused = client.result()
    assert refused.returncode != 0
    assert "n3: the connection broke" in refused.stderr
    assert "n1: " not in refused.stderr
    run = cluster.submit("echo started", **options)
    again = sent(run)
    assert (again["n1"], again["n2"]) == (0, 0)
    assert 1 <= again["n3"] <= 6
    assert ended(cluster, run) == ("succeeded", None)


def test_on_a_terminal_one_line_tells_what_all_nodes_together_have_got(apart: Desk) -> None:
    work = apart.folder / "large"
    (work / "small").mkdir(parents=True)
    (work / "job.sh").write_text("true")
    for name, mib in (("a.bin", 8), ("b.bin", 8)):
        (work / name).write_bytes(os.urandom(mib << 20))
    for number in range(200):
        (work / "small" / str(number)).write_text(str(number))
    job = ("--cluster", "apart", "--framework", "env", "--nodes", "3", "--preflight", "off")
    words = ("submit", *job, "--sync", "large", "large/job.sh")
    client, master = apart.on_terminal(*words)
    printed = read_to_end(master)
    assert client.wait(timeout=60) == 0, printed.decode()
    told = re.findall(r"([0-9]+) (MB|kB) of ([0-9]+) MB sent to nodes", printed.decode())
    done = [int(number) for number, unit, _ in told if unit == "MB"]
    assert done == sorted(done)
    assert told[-1] == ("50", "MB", "50")  # 3 times 2 of 8.4 MB
    assert printed.count(b"\x1b[?25l") == 1  # the cursor is hidden once: one line


def test_a_node_without_a_network_for_a_while_is_no_fault(cluster: Cluster) -> None:
    cluster.environment |= UNSCALED  # four seconds are the patience of the others otherwise
    run = running(cluster, "for k in 1 2 3 4 5 6 7 8 9; do echo $k; sleep 1; done")
    with link_down(cluster, "n3"):
        time.sleep(4)
    assert ended(cluster, run) == ("succeeded", None)
    assert [run.log(k).read_text().split()[-1] for k in range(3)] == ["9"] * 3


def test_a_node_that_has_gone_is_named_and_the_others_words_come_back(cluster: Cluster) -> None:
    run = running(cluster, "trap 'echo told; exit 1' TERM; echo on; sleep 300 & wait")
    with link_down(cluster, "n3"):
        document = cluster.over(run)
    assert (document["state"], document["reason"]) == ("failed", "n3 no longer answers")
    assert [run.log(k).read_text() for k in range(2)] == ["on\ntold\n"] * 2
    await_true(lambda: not cluster.left(run))


@contextmanager
def link_down(cluster: Cluster, node: str) -> Iterator[None]:
    """Take the network of a node away; Slurm has taken it back when the block ends."""
    cluster.lab.run(node, ["ip", "link", "set", "eth0", "down"], check=True)
    try:
        yield
    finally:
        cluster.lab.run(node, ["ip", "link", "set", "eth0", "up"], check=True)
        cluster.lab.run("head", ["scontrol", "reconfigure"], check=True)  # asks all nodes at once
        wait_for_state(cluster.lab, "idle", node)


def test_the_next_attempt_goes_on_in_the_same_copy(cluster: Cluster) -> None:
    work = cluster.folder / "work"
    work.mkdir()
    (work / "job.py").write_text("")
    body = (
        "echo attempt $CK_RESTART_COUNT >> seen; cat seen; [[ $CK_RESTART_COUNT = 1 ]] || sleep 300"
    )
    options = {"shared": False, "sync": str(work), "script": f"{work}/job.py"}
    run = cluster.submit(body, **options, time="0:30", requeue=1)
    assert ended(cluster, run) == ("succeeded", None)
    for rank in range(3):
        lines = run.log(rank).read_text().splitlines()
        assert [line for line in lines if "clusterkit" not in line] == [
            *("attempt 0", "attempt 0", "attempt 1"),
        ], lines


def test_a_spare_gets_the_folder_as_it_was(cluster: Cluster) -> None:
    work = cluster.folder / "work"
    work.mkdir()
    (work / "job.py").write_text("as it was\n")
    options = {"shared": False, "sync": str(work), "script": f"{work}/job.py", "nodes": 2}
    again = {"requeue": 1, "spares": 1}
    run = cluster.submit("cat job.py; ((CK_RESTART_COUNT)) || sleep 300", **options, **again)
    await_true(lambda: len(said(cluster, run)) >= 2)
    (work / "job.py").write_text("changed\n")
    agent = one_process(cluster.lab, "n2", f"ssh[.]agent .*{run.run_id}")
    os.kill(agent.pid, signal.SIGTERM)
    await_true(lambda: cluster.state(run)[0] == "requeued")
    with link_down(cluster, "n2"):
        assert cluster.ck("wait", run.run_id)[0] == 0
    assert ended(cluster, run) == ("succeeded", None)
    assert json.loads((run.path / "ssh.json").read_text())["names"] == ["n1", "n3"]
    lines = run.log(1).read_text().splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("as it was", "as it was", 3)


def test_a_large_log_comes_whole_in_little_memory(cluster: Cluster) -> None:
    size = 200_000_000
    body = f"[[ $CK_NODE_RANK != 0 ]] || yes 0123456789 2>/dev/null | head -c {size}"
    run = cluster.submit(body, **APART)
    measured = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    argv = [sys.executable, "-c", measured, sys.executable, "-m", "clusterkit"]
    done = cluster.lab.run(
        "head",
        [*argv, "wait", run.run_id],
        env=cluster.environment,
        cwd=ROOT,
        timeout_s=200,
    )
    assert int(done.stdout.split()[-1]) < 150_000, "kilobytes"
    assert run.log(0).stat().st_size == size
    with run.log(0).open("rb") as stream:
        stream.seek(size // 2 // 11 * 11)
        assert stream.read(22) == b"0123456789\n" * 2


def test_results_larger_than_allowed_stay_where_they_are(cluster: Cluster) -> None:
    work = cluster.folder / "work"
    work.mkdir()
    (work / "job.py").write_text("")
    options = {"shared": False, "sync": str(work), "script": f"{work}/job.py", "nodes": 1}
    body = "echo small > $CK_RESULTS/s; head -c 3000000 /dev/zero > $CK_RESULTS/large"
    run = cluster.submit(body, **options, sync_limit_mib=2)
    assert ended(cluster, run) == ("succeeded", None)
    (note,) = run.results.iterdir()
    assert note.name == "NOT-COPIED-from-n1.txt"
    assert f"rsync -a n1:.clusterkit/runs/{run.run_id}/results/ " in note.read_text()


THREE = ("--cluster", "apart", "--framework", "torchrun", "--nodes", "3", "--preflight", "off")


def on_each(desk: Desk, command: str) -> list[str]:
    """Return what a command of sh prints on each node."""
    hosts = desk.lab.nodes
    return [desk.lab.run(host, ["sh", "-c", command], check=True).stdout.strip() for host in hosts]


def test_training_with_a_copy_of_the_folder_brings_logs_and_results_back(apart: Desk) -> None:
    work = apart.folder / "work"
    shutil.copytree(ROOT / "examples", work / "src", dirs_exist_ok=True)
    (work / "src" / "train.py").write_text(
        "import os, pathlib, runpy\n"
        "rank, results = os.environ['RANK'], pathlib.Path(os.environ['CK_RESULTS'])\n"
        "(results / f'rank {rank}').write_text(os.getcwd())\n"
        "os.write(1, f'NAME {os.environ[\"SECRET_NAME\"]}\\n'.encode())  # whole, beside others\n"
        "script = str(pathlib.Path(__file__).with_name('train_ddp.py'))\n"
        "runpy.run_path(script, run_name='__main__')\n"
    )
    (work / "src" / "big.bin").write_bytes(b"0" * 1000)
    (work / ".gitignore").write_text("*.bin\n")
    words = ("submit", *THREE, "--sync", "work", "--secret", "SECRET_NAME", "--follow")
    script = ("work/src/train.py", "--steps", "20")
    done = apart.clusterkit(*words, *script, env={"SECRET_NAME": "x7"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("NAME x7") == 6
    assert "done: loss" in done.stdout
    (run,) = (apart.folder / "runs").glob("train-*")
    there = f"{OURS}/runs/{run.name}"
    # Ranks 0 and 1 are those of the first node; those of others have a folder each.
    assert {str(p.relative_to(run)) for p in run.glob("results/**/rank*")} == {
        "results/rank 0",
        "results/rank 1",
        "results/node-1/rank 2",
        "results/node-1/rank 3",
        "results/node-2/rank 4",
        "results/node-2/rank 5",
    }
    assert (run / "results" / "rank 0").read_text() == f"{there}/work"
    assert [(run / "logs" / f"node-{k}.log").read_text() for k in range(3)] == [
        text + "\n" for text in on_each(apart, f"cat {there}/logs/*")
    ]
    # What is ignored was not sent, and no secret is left.
    listed = on_each(apart, f"cd {there}; ls -a work work/src; ls secrets.env 2>&1 || true")
    assert all("big.bin" not in text and "No such file" in text for text in listed)
    assert apart.state(run.name) == "succeeded"


def test_what_is_measured_between_such_nodes_comes_back(apart: Desk) -> None:
    words = ("--nodes", "2", "--gpus-per-node", "1", "--sizes", "64K:128K", "--iters", "2")
    done = apart.clusterkit("bench", "collectives", "-c", "apart", *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert (document["nodes"], document["correct"]) == (["n1", "n2"], True)


def test_nodes_that_cannot_be_prepared_say_why(lab: Lab, wheels: Path, tmp_path: Path) -> None:
    desk = desk_apart(lab, "not-prepared")
    words = ("nodes", "prepare", "-c", "apart")
    with homes_apart(lab, ["n1"], size="30m"), homes_apart(lab, ["n2"]):
        done = desk.clusterkit(*words, "--hosts", "n1", "--wheels", str(wheels))
        assert done.returncode == 1
        assert f"MiB are free at {OURS}/venv, and about" in done.stdout
        done = desk.clusterkit(*words, "--hosts", "n2", "--python", "/nowhere/python")
        assert done.returncode == 1
        assert "n2  failed  /nowhere/python cannot be run there" in done.stdout
        assert "hint: install Python 3.11" in done.stdout
        done = desk.clusterkit(*words, "--hosts", "n2", "--python", str(old_python(desk.folder)))
        assert done.returncode == 1
        assert "is Python 3.8.2, and 3.11 or later is needed" in done.stdout
        done = desk.clusterkit(*words, "--hosts", "n2", "--wheels", str(lone(wheels, tmp_path)))
        assert done.returncode == 1
        assert "No matching distribution found for" in done.stdout
        assert "hint: give a wheel of it: --wheels DIR" in done.stdout
    done = desk.clusterkit(*words, "--hosts", "n1,n9")
    assert done.returncode == 2
    assert "cluster apart has no host n9" in done.stderr


def old_python(folder: Path) -> Path:
    """Return a double for a Python that is too old: this one, which says that it is another."""
    double = folder / "python-old"
    # It is called with -I -X utf8 -c PROGRAM TOKEN.
    double.write_text(
        "#!/bin/sh\nold='import sys; sys.version_info = (3, 8, 2)\n'\n"
        f'exec {sys.executable} "$1" "$2" "$3" "$4" "$old$5" "$6"\n'
    )
    double.chmod(0o755)
    return double


def lone(wheels: Path, folder: Path) -> Path:
    """Return our wheel in a folder without any other."""
    (wheel,) = wheels.glob("clusterkit_launch-*.whl")
    alone = folder / wheel.name
    alone.write_bytes(wheel.read_bytes())
    return alone
