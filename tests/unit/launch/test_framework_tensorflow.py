"""The framework `tensorflow`, without TensorFlow: who is told what, who meets whom, and the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import peers
from clusterkit.core.data import PEERS, data_dir
from clusterkit.core.errors import UserError
from clusterkit.core.model import NodeCommand
from clusterkit.core.ports import hold_port
from clusterkit.launch.frameworks import LaunchInputs, load_framework
from clusterkit.launch.render import render
from tests.helpers.command_line import typed_in
from tests.helpers.render_cases import PLAIN, job, make_plan

TEMPLATES = data_dir("templates")
TELL = """
import glob, json, os, time
told = json.loads(os.environ.get("TF_CONFIG", "null")), os.environ.get("CUDA_VISIBLE_DEVICES")
os.write(1, json.dumps(told).encode() + b"\\n")
folder = os.environ["CK_TMP"]
open(f"{folder}/told-{os.getpid()}", "w").close()
while len(glob.glob(f"{folder}/told-*")) < WORLD:  # or the chief would end all others
    time.sleep(0.02)
"""
ROLE = "import json, os, time; role = json.loads(os.environ['TF_CONFIG'])['task']['type']; "


def command(*, nodes: int = 3, slots: int = 2, **options: str) -> NodeCommand:
    inputs = LaunchInputs(
        script="x.py",
        nodes=nodes,
        slots=(slots,) * nodes,
        processes=nodes * slots,
        options=options,
    )
    return load_framework("tensorflow").command(inputs)


class Nodes:
    """The nodes of a job on this machine, each with its launcher."""

    def __init__(self, folder: Path, flags: Sequence[str], code: str, slots: str) -> None:
        port = hold_port(20000, 29999, seed=str(folder)).number
        self.names = [f"node-{rank}" for rank, _ in enumerate(slots.split())]
        self.folder, self.port = folder, port
        shutil.copy(peers.__file__, folder / PEERS)
        words = [
            sys.executable,
            str(TEMPLATES / "frameworks/tensorflow/tensorflow_launch.py"),
            *flags,
        ]
        self.launchers = [
            subprocess.Popen(
                [*words, sys.executable, "-u", "-c", code],
                env=self.environment(rank, slots),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for rank in range(len(self.names))
        ]

    def environment(self, rank: int, slots: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{TEMPLATES / 'programs/ranks'}:{self.folder}",
            "CK_TOKEN": "the same on all nodes",
            "OMP_NUM_THREADS": "1",
            "CK_JOB_ID": "7",
            "CK_RESTART_COUNT": "0",
            "CK_NODES": " ".join(self.names),
            "CK_SLOTS": slots,
            "CK_NODE_RANK": str(rank),
            "CK_NODE_NAME": self.names[rank],
            "CK_HEAD_ADDR": "127.0.0.1",
            "CK_PORT": str(self.port),
            "CK_TMP": str(self.folder),
            "CK_FAILURE": str(self.folder / "failure.json"),
        }

    def end(self) -> list[tuple[int, str, str]]:
        """Wait for all; return exit code, output and errors of each."""
        said = [launcher.communicate(timeout=60) for launcher in self.launchers]
        codes = [launcher.returncode for launcher in self.launchers]
        return [(code, *texts) for code, texts in zip(codes, said, strict=True)]


@contextmanager
def started(folder: Path, *flags: str, code: str, slots: str = "1 1 1") -> Iterator[Nodes]:
    nodes = Nodes(folder, flags, code, slots)
    try:
        yield nodes
    finally:
        for launcher in nodes.launchers:
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.communicate()


def told(tmp_path: Path, *flags: str, slots: str = "1 1 1", world: int = 3) -> list[Any]:
    """Return what every process was told, in the order of nodes."""
    code = TELL.replace("WORLD", str(world))
    with started(tmp_path, *flags, slots=slots, code=code) as nodes:
        ended = nodes.end()
    assert [code for code, _, _ in ended] == [0] * len(ended), ended
    return [json.loads(line) for _, out, _ in ended for line in out.splitlines()]


def tasks(answers: list[Any]) -> list[str]:
    return sorted(f"{c['task']['type']} {c['task']['index']}" for c, _ in answers)


def test_all_processes_agree_on_the_cluster_and_each_has_a_task(tmp_path: Path) -> None:
    answers = told(tmp_path)
    assert tasks(answers) == ["worker 0", "worker 1", "worker 2"]
    (cluster,) = {json.dumps(config["cluster"]) for config, _ in answers}
    addresses = json.loads(cluster)["worker"]
    assert len(set(addresses)) == 3
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_roles_come_in_the_order_of_tensorflows_resolver(tmp_path: Path) -> None:
    answers = told(
        tmp_path, "--processes=6", "--chief=1", "--evaluator=1", "--ps=1", slots="2 3 2", world=6
    )
    ranks = [f"{config['task']['type']} {config['task']['index']}" for config, _ in answers]
    assert sorted(ranks) == ["chief 0", "evaluator 0", "ps 0", "worker 0", "worker 1", "worker 2"]
    by_task = {name: config["cluster"] for name, (config, _) in zip(ranks, answers, strict=True)}
    assert set(by_task["chief 0"]) == {"chief", "ps", "worker"}
    assert set(by_task["evaluator 0"]) == {"chief", "evaluator", "ps", "worker"}
    del by_task["evaluator 0"]
    assert len({json.dumps(cluster) for cluster in by_task.values()}) == 1
    first, second, third = answers[:2], answers[2:5], answers[5:]
    assert tasks(first) == ["chief 0", "evaluator 0"]
    assert tasks(second) == ["ps 0", "worker 0", "worker 1"]
    assert tasks(third) == ["worker 2"]


def test_one_process_has_no_tf_config(tmp_path: Path) -> None:
    assert told(tmp_path, slots="4", world=1) == [[None, None]]


def test_each_process_of_a_slot_sees_its_gpu(tmp_path: Path) -> None:
    answers = told(tmp_path, "--processes=3", slots="2 1")
    seen = sorted((c["task"]["index"], visible) for c, visible in answers)
    assert seen == [(0, "0"), (1, "1"), (2, "0")]


def test_a_port_that_is_taken_on_a_node_is_passed_over(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", hold_port(20000, 29999, seed=str(tmp_path)).number + 1))
        answers = told(tmp_path)
        used = {int(a.rpartition(":")[2]) for a in answers[0][0]["cluster"]["worker"]}
        assert taken.getsockname()[1] not in used


def test_the_end_of_the_chief_ends_servers_and_workers(tmp_path: Path) -> None:
    code = ROLE + "time.sleep(0.5 if role == 'chief' else 300)"
    with started(tmp_path, "--chief=1", "--ps=1", "--evaluator=1", code=code, slots="1 1 1 1") as n:
        assert [code for code, _, _ in n.end()] == [0, 0, 0, 0]  # the others would take longer


def test_an_evaluator_is_taken_down_after_the_last_worker(tmp_path: Path) -> None:
    code = ROLE + (
        "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "time.sleep(index / 2 if role == 'worker' else 300); print('done', index)"
    )
    with started(tmp_path, "--evaluator=1", code=code) as nodes:
        ended = nodes.end()
    assert [code for code, _, _ in ended] == [0, 0, 0]
    assert [out for _, out, _ in ended] == ["", "done 0\n", "done 1\n"]


@pytest.mark.parametrize("flags", [(), ("--chief=1", "--ps=1")])
def test_a_process_that_fails_ends_all_and_is_the_one_to_blame(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    code = "import os, time; time.sleep(300 if os.environ['CK_NODE_RANK'] != '1' else 0.5); 1 / 0"
    with started(tmp_path, *flags, code=code) as nodes:
        ended = nodes.end()
    assert [code for code, _, _ in ended] == [1, 1, 1]
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert (failure["node"], failure["rank"], failure["exit_code"]) == ("node-1", 1, 1)
    assert "ZeroDivisionError" in ended[1][2]
    assert "another node of the job has failed" in ended[2][2]


def test_a_signal_ends_the_processes_of_a_node(tmp_path: Path) -> None:
    code = "import time; print('on', flush=True); time.sleep(300)"
    with started(tmp_path, code=code) as nodes:
        for launcher in nodes.launchers:
            assert launcher.stdout is not None
            assert launcher.stdout.readline() == "on\n"
        nodes.launchers[2].send_signal(signal.SIGTERM)
        assert all(code for code, _, _ in nodes.end())


def test_no_proxy_stands_between_the_processes(tmp_path: Path) -> None:
    """TensorFlow's gRPC would ask the proxy of the site for them, and wait for ever."""
    code = "import os; print(os.environ['no_grpc_proxy'])"
    with started(tmp_path, slots="1 1", code=code) as nodes:
        assert [out for _, out, _ in nodes.end()] == ["127.0.0.1\n"] * 2


def test_one_process_a_node_unless_told_otherwise() -> None:
    assert command().processes == 3
    assert command(per="slot").processes == 6
    assert "--processes=6" in command(per="slot").argv


def test_parameter_servers_have_a_chief() -> None:
    assert {"--chief=1", "--ps=1"} <= set(command(ps="1").argv)
    assert "--chief=1" not in command(ps="1", chief="0").argv
    assert not any("--ps" in str(word) for word in command().argv)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ps": "2"}, "1 chief \\+ 2 ps leave no worker: the job has 3 processes"),
        ({"ps": "1", "evaluator": "1"}, "leave no worker"),
        ({"ps": "-1"}, "tensorflow.ps=-1: a number of processes is wanted"),
        ({"ps": "many"}, "a number of processes is wanted"),
        ({"evaluator": "2"}, "tensorflow.evaluator=2: 0 or 1 is wanted"),
        ({"per": "gpu"}, "one process per node, or one per slot"),
        ({"sp": "1"}, "tensorflow has no option 'sp'"),
    ],
)
def test_what_it_refuses(options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        command(**options)


def test_fewer_processes_than_slots_are_for_one_a_slot() -> None:
    inputs = LaunchInputs(script="x.py", nodes=2, slots=(2, 2), processes=3)
    with pytest.raises(UserError, match="one process per node"):
        load_framework("tensorflow").command(inputs)


def test_a_compose_file_leaves_out_roles_that_need_more_hosts() -> None:
    plan = make_plan(job("tensorflow", nodes=3, launcher_options={"ps": "1"}), PLAIN, workdir="/w")
    texts = {file.name: file.text for file in render(plan)}
    assert "--ps=1" in texts["node.sh"]
    assert "--ps=1" not in texts["compose-node.sh"]
    assert "3 nodes x 4 slots, 3 processes" in texts["job.sbatch"]
    assert "1 node x 4 slots, 1 process." in texts["compose.yaml"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--framework", "tensorflow", "--nodes", "3"), "--ps=1"),
        (("--framework", "tensorflow", "--nodes", "2"), "1 chief + 1 ps leave no worker"),
        (("--framework", "torchrun", "--nodes", "3"), "--ps is not for torchrun"),
    ],
)
def test_the_flag_ps_is_short_for_the_option(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("ps: 1\nscript: x.py\n")
    done = [
        typed_in(tmp_path, "render", "--only", "node", "--stdout", *words, *given)
        for given in (("--ps", "1", "x.py"), ("--job", "job.yaml"))
    ]
    for one in done:
        assert said in one.stdout + one.stderr
        assert one.returncode == (0 if said == "--ps=1" else 2)
