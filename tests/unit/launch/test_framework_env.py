"""The framework `env`: one process per slot, who is told who it is, and how the node then ends."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.data import data_dir
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterKind, ClusterSpec
from clusterkit.launch.frameworks import LaunchInputs, load_framework
from clusterkit.launch.options import JobSpec
from clusterkit.launch.plan import make_plan
from clusterkit.launch.render import summary

LAUNCH = data_dir("templates/frameworks/env") / "env_launch.py"
RANKS = data_dir("templates/programs/ranks")
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR",
         "JAX_LOCAL_DEVICE_IDS")  # fmt: skip
TELL = f"import json, os; print(json.dumps([os.environ[name] for name in {NAMES}]), flush=True)"


def environment(tmp_path: Path, *, node_rank: int, slots: str, **more: str) -> dict[str, str]:
    nodes = [f"n{number}" for number in range(len(slots.split()))]
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(RANKS),
        "CK_NODES": " ".join(nodes),
        "CK_SLOTS": slots,
        "CK_NNODES": str(len(nodes)),
        "CK_NODE_RANK": str(node_rank),
        "CK_NODE_NAME": nodes[node_rank],
        "CK_HEAD_ADDR": "n0",
        "CK_PORT": "21000",
        "CK_TMP": str(tmp_path),
        "CK_FAILURE": str(tmp_path / "failure.json"),
        **more,
    }


def words(processes: int, code: str) -> list[str]:
    return [sys.executable, str(LAUNCH), f"--processes={processes}", sys.executable, "-c", code]


def launched(
    tmp_path: Path, code: str, *, processes: int = 99, **more: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words(processes, code),
        env=environment(tmp_path, **more),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("node_rank", "slots", "processes", "ranks"),
    [
        (0, "2 2", 4, [["0", "0", "4", "2"], ["1", "1", "4", "2"]]),
        (1, "2 2", 4, [["2", "0", "4", "2"], ["3", "1", "4", "2"]]),
        (1, "1 3", 4, [["1", "0", "4", "3"], ["2", "1", "4", "3"], ["3", "2", "4", "3"]]),
        (1, "2 2", 3, [["2", "0", "3", "1"]]),
        (1, "4 4", 3, []),
        (0, "1", 8, [["0", "0", "1", "1"]]),
    ],
)
def test_each_process_is_told_who_it_is(
    tmp_path: Path, node_rank: int, slots: str, processes: int, ranks: list[list[str]]
) -> None:
    done = launched(tmp_path, TELL, node_rank=node_rank, slots=slots, processes=processes)
    assert done.returncode == 0, done.stderr
    told = sorted(json.loads(line) for line in done.stdout.splitlines())
    assert told == [[*rank, str(node_rank), "n0", rank[1]] for rank in ranks]


def test_fewer_processes_a_node_are_spread_over_all_nodes(tmp_path: Path) -> None:
    wide = [*words(8, TELL)]
    wide.insert(3, "--per-node=2")
    told = [
        subprocess.run(
            wide,
            env=environment(tmp_path, node_rank=node, slots="4 1 3"),
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for node in range(3)
    ]
    ranks = [sorted(json.loads(line)[:4] for line in said.splitlines()) for said in told]
    devices = [sorted(json.loads(line)[-1] for line in said.splitlines()) for said in told]
    assert devices == [["0,1", "2,3"], ["0"], ["0", "1"]]
    assert ranks == [
        [["0", "0", "5", "2"], ["1", "1", "5", "2"]],
        [["2", "0", "5", "1"]],
        [["3", "0", "5", "2"], ["4", "1", "5", "2"]],
    ]


def test_rpc_finds_the_interface_of_gloo(tmp_path: Path) -> None:
    code = "import os; print(os.environ.get('TP_SOCKET_IFNAME'), flush=True)"
    for more, found in (
        ({}, "None"),
        ({"GLOO_SOCKET_IFNAME": "ib0"}, "ib0"),
        ({"GLOO_SOCKET_IFNAME": "ib0", "TP_SOCKET_IFNAME": "eth1"}, "eth1"),
    ):
        assert launched(tmp_path, code, node_rank=0, slots="1", **more).stdout.strip() == found


def test_on_slurm_each_is_told_what_srun_would_have(tmp_path: Path) -> None:
    names = (
        "PROCID", "LOCALID", "NODEID", "NNODES", "NTASKS", "NPROCS", "NTASKS_PER_NODE",
        "STEP_NUM_TASKS", "STEP_TASKS_PER_NODE", "STEP_NODELIST",
    )  # fmt: skip
    code = f"import os; print(*(os.environ['SLURM_' + name] for name in {names}), flush=True)"
    done = launched(
        tmp_path, code, node_rank=1, slots="2 2", SLURM_JOB_ID="7", SLURM_PROCID="1",
        SLURM_NTASKS="2", SLURM_NTASKS_PER_NODE="1", SLURM_LOCALID="0",
    )  # fmt: skip
    assert sorted(done.stdout.splitlines()) == [
        "2 0 1 2 4 4 2 4 2,2 n0,n1",
        "3 1 1 2 4 4 2 4 2,2 n0,n1",
    ]


@pytest.mark.parametrize(("end", "code"), [("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_the_first_to_fail_is_named_and_the_others_end(tmp_path: Path, end: str, code: int) -> None:
    body = f"import os, time; time.sleep(300 if os.environ['RANK'] != '4' else 0.2); {end}"
    done = launched(tmp_path, body, node_rank=1, slots="3 3")  # the others would take longer
    assert done.returncode == code
    told = json.loads((tmp_path / "failure.json").read_text())
    assert (told["node"], told["rank"], told["local_rank"], told["exit_code"]) == ("n1", 4, 1, code)


LOSES = """
import atexit, os, pathlib, socket, subprocess, sys, time

place = pathlib.Path({folder!r}, "socket")
if os.environ["RANK"] == "0":
    while not place.exists():
        time.sleep(0.05)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(place))
        connection.recv(1)
    raise RuntimeError("Connection closed by peer")
server = socket.socket(socket.AF_UNIX)
server.bind(str(place.with_suffix(".new")))
server.listen()
place.with_suffix(".new").rename(place)
other = server.accept()[0]
"""
"""Rank 0 loses the other one, which is on another node, and raises as soon as it has."""
RAISES = """
atexit.register(time.sleep, 3)
atexit.register(other.close)
raise ValueError("the loss is NaN")
"""
"""Python ends late, and closes the sockets before."""
DIES = """
launcher = str(os.getppid())
subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {launcher}"])
os.kill(int(launcher), 19)
os.kill(os.getpid(), 9)
"""
"""Who started it notices late."""


def started(tmp_path: Path, *command: str, node_rank: int, slots: str) -> subprocess.Popen[str]:
    """Start the ranks of a node with all that the plan gives it, in a folder of its own."""
    folder = tmp_path / f"n{node_rank}"
    folder.mkdir()
    for name, text in load_framework("env").command(LaunchInputs(script="train.py")).files.items():
        (folder / name).write_text(text)
    site = tmp_path / "site"
    return subprocess.Popen(
        [sys.executable, str(folder / LAUNCH.name), "--processes=2", *command],
        env={
            **environment(folder, node_rank=node_rank, slots=slots),
            "PYTHONPATH": str(site),
            "CK_FAILURE": str(tmp_path / "failure.json"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [(RAISES, 1, "ValueError: the loss is NaN"), (DIES, 137, None)],
    ids=["raise", "kill"],
)
def test_who_loses_a_rank_of_another_node_is_not_blamed(
    tmp_path: Path, end: str, code: int, message: str | None
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOSES.format(folder=str(tmp_path)) + end)
    nodes = [
        started(tmp_path, sys.executable, str(script), node_rank=rank, slots="1 1")
        for rank in range(2)
    ]
    output = [node.communicate(timeout=60)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [1, code]
    told = json.loads((tmp_path / "failure.json").read_text())
    assert (told["rank"], told["exit_code"], told.get("message")) == (1, code, message)
    assert output[0].rstrip().endswith("RuntimeError: Connection closed by peer")


NOT_THE_RANK = """
import code, multiprocessing, os, subprocess, sys, threading

if __name__ == "__main__":
    if not os.fork():
        raise ValueError("in a fork")
    os.wait()
    subprocess.run([sys.executable, "-c", "raise ValueError('in a program')"])
    for start in ("fork", "spawn"):
        worker = multiprocessing.get_context(start).Process(target=int, args=("no number",))
        worker.start()
        worker.join()
    hooks = threading.excepthook, lambda failed: sys.excepthook(*failed[:3])
    for threading.excepthook in hooks:
        thread = threading.Thread(target=int, args=("no number",))
        thread.start()
        thread.join()
    try:
        raise ValueError("handled")
    except ValueError as error:
        sys.excepthook(*sys.exc_info())
        sys.last_value = error
        sys.excepthook(*sys.exc_info())
    code.InteractiveInterpreter().runcode("raise ValueError('in a console')")
    print(os.environ["PYTHONPATH"], sys.modules["sitecustomize"].__file__, *sys.path[1:2])
"""


def test_only_the_exception_that_ends_a_rank_is_told_of(tmp_path: Path) -> None:
    """Neither those of what it starts; which finds Python as without clusterkit."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").touch()
    (tmp_path / "train.py").write_text(NOT_THE_RANK)
    (tmp_path / "train.sh").write_text(
        f"{sys.executable} -c \"raise ValueError('in a step')\"\n"
        f"exec {sys.executable} {tmp_path / 'train.py'}\n"
    )
    node = started(tmp_path, "bash", str(tmp_path / "train.sh"), node_rank=0, slots="1")
    output, errors = node.communicate(timeout=60)
    assert (node.returncode, errors.count("ValueError: ")) == (0, 10)
    assert output.split() == [str(site), str(site / "sitecustomize.py"), str(site)]
    assert not (tmp_path / "failure.json").exists()


HANDLED = """
import sys
try:
    raise ValueError("first")
except ValueError:
    sys.excepthook(*sys.exc_info())
"""
HOOK = """
import sys
before = sys.excepthook
sys.excepthook = lambda *error: before(*error)
"""


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        ("raise OSError('reset by peer')", 1, "OSError: reset by peer"),
        ("raise type('Odd', (Exception,), {'__str__': None})", 1, "Odd"),
        ("raise ValueError('x' * 10**7)", 1, f"ValueError: {'x' * 3988}"),
        (
            "import pathlib; del pathlib.Path.hardlink_to; raise ValueError('of 3.9')",
            1,
            "ValueError: of 3.9",
        ),
        ("import os; os.environ.clear(); raise ValueError('alone')", 1, "ValueError: alone"),
        (HANDLED + "sys.exit(3)", 3, None),
        (HANDLED + "raise ValueError('second')", 1, "ValueError: second"),
        (HOOK + "raise ValueError('by a hook')", 1, "ValueError: by a hook"),
        ("raise KeyboardInterrupt", 130, None),
        ("raise SystemExit(3)", 3, None),
    ],
)
def test_how_an_exception_ends_a_rank(
    tmp_path: Path, end: str, code: int, message: str | None
) -> None:
    node = started(tmp_path, sys.executable, "-c", end, node_rank=0, slots="1")
    node.communicate(timeout=60)
    told = json.loads((tmp_path / "failure.json").read_text())
    assert (node.returncode, told["rank"], told["exit_code"]) == (code, 0, code)
    assert told.get("message") == message


def test_any_python_that_a_rank_starts_can_read_what_it_loads() -> None:
    for name in ("ranks_sitecustomize.py", "clusterkit_failure.py"):
        ast.parse((RANKS / name).read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("again", range(4))
def test_who_fails_a_moment_later_is_not_blamed(tmp_path: Path, again: int) -> None:
    """The first ranks have lost the last one, and end as soon as they see it."""
    body = (
        "import os, sys, time; from pathlib import Path\n"
        "if os.environ['RANK'] == '2':\n"
        "    Path('last').write_text(str(os.getpid())); time.sleep(0.2); os._exit(7)\n"
        "while not (Path('last').exists() and Path('last').read_text()): time.sleep(0.01)\n"
        "stat = Path('/proc', Path('last').read_text(), 'stat')\n"
        "while stat.exists() and stat.read_text().split()[2] != 'Z': time.sleep(0.001)\n"
        "time.sleep(0.05); sys.exit(1)\n"
    )
    done = launched(
        tmp_path, f"import os; os.chdir({str(tmp_path)!r})\n{body}", slots="3", node_rank=0
    )
    told = json.loads((tmp_path / "failure.json").read_text())
    assert (done.returncode, told["rank"]) == (7, 2)


def test_a_signal_reaches_every_process(tmp_path: Path) -> None:
    body = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'bye\\n'), os._exit(0)))\n"
        "os.write(1, b'on\\n'); time.sleep(300)"
    )
    started = subprocess.Popen(
        words(9, body),
        env=environment(tmp_path, node_rank=0, slots="3"),
        stdout=subprocess.PIPE,
        text=True,
    )
    with started as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["on\n"] * 3
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read().split() == ["bye"] * 3


@pytest.mark.parametrize("number", ["", "0", "two", "-1"])
def test_a_number_of_processes_that_is_none(number: str) -> None:
    with pytest.raises(UserError, match=r"env\.per-node is"):
        load_framework("env").command(LaunchInputs(script="x.py", options={"per-node": number}))


def test_it_has_no_other_options() -> None:
    with pytest.raises(UserError, match="no option 'max-restarts'"):
        load_framework("env").command(LaunchInputs(script="x.py", options={"max-restarts": "3"}))


@pytest.mark.parametrize(
    ("framework", "option", "asked", "processes", "told"),
    [
        ("env", {"per-node": "1"}, None, 2, "2 nodes x 2 slots, 2 processes"),
        ("env", {"per-node": "3"}, None, 4, "2 nodes x 2 slots, 4 processes"),
        ("env", {"per-node": "1"}, 1, 1, "2 nodes x 2 slots, 1 process"),
        ("env", {}, 3, 3, "2 nodes x 2 slots, 3 processes"),
        ("torchrun", {"nproc-per-node": "1"}, None, 2, "2 nodes x 2 slots, 2 processes"),
        ("torchrun", {"nproc_per_node": "4"}, None, 8, "2 nodes x 2 slots, 8 processes"),
    ],
)
def test_as_many_processes_are_announced_as_run(
    framework: str, option: dict[str, str], asked: int | None, processes: int, told: str
) -> None:
    job = JobSpec(
        framework=framework, script="x.py", nodes=2, gpus_per_node=(2,), processes=asked,
        launcher_options=option,
    )  # fmt: skip
    plan = make_plan(job, ClusterSpec(name="local", kind=ClusterKind.LOCAL), workdir="/w")
    assert plan.processes == processes
    assert summary(plan) == f"{framework} on {told}"
    if framework == "torchrun":
        assert plan.command.argv.count(f"--nproc-per-node={processes // 2}") == 1
        assert sum(str(word).startswith("--nproc") for word in plan.command.argv) == 1


def test_torchrun_takes_a_number_of_processes() -> None:
    with pytest.raises(UserError, match=r"torchrun\.nproc-per-node is 'gpu'"):
        load_framework("torchrun").command(
            LaunchInputs(script="x.py", options={"nproc_per_node": "gpu"})
        )
