"""The framework `mpi`, without MPI: a program that does what mpirun does, and nodes that answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import peers
from clusterkit.core.data import PEERS, data_dir
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterKind, ClusterSpec, NodeCommand
from clusterkit.launch.frameworks import LaunchInputs, load_framework
from clusterkit.launch.frameworks.base import mpirun_names
from clusterkit.launch.options import JobSpec
from clusterkit.launch.plan import make_plan
from tests.helpers.loading import load
from tests.unit.launch.test_framework_env import DIES, LOSES, RAISES

TEMPLATES = data_dir("templates/frameworks/mpi")
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR")
TELL = f"import json, os; print(json.dumps([os.environ[name] for name in {NAMES}]), flush=True)"

MPIRUN = r"""#!/bin/sh
# What mpirun does: a daemon on each host by the agent, with MPI's own folder first on PATH, and
# ranks by the daemon; here it is a loop.
case $1 in --version) echo "mpirun (Open MPI) 4.1.4"; exit ;; esac
printf '%s\n' "$@" >"$MPI_SEEN"
env >"$MPI_SEEN.env"
world=$(awk -F slots= '{ n += $2 } END { print n }' mpi_hostfile)
first=0
while read -r host slots; do
  slots=${slots#slots=}
  daemon="export PATH=/of/mpi:\$PATH; k=0; while [ \$k -lt $slots ]; do \
OMPI_COMM_WORLD_RANK=\$(($first + k)) \
OMPI_COMM_WORLD_SIZE=$world OMPI_COMM_WORLD_LOCAL_RANK=\$k OMPI_COMM_WORLD_LOCAL_SIZE=$slots \
sh -c '. \"\$CK_TMP/mpi_rank.sh\"' & pids=\"\$pids \$!\"; k=\$((k + 1)); done; \
for pid in \$pids; do wait \$pid || code=\$?; done; exit \${code:-0}"
  first=$((first + slots))
  $OMPI_MCA_plm_rsh_agent "$host" "$daemon" &
  agents="$agents $!"
done <mpi_hostfile
for agent in $agents; do wait "$agent" || code=$?; done
exit "${code:-0}"
"""


def command(**options: str) -> NodeCommand:
    inputs = LaunchInputs(
        script="x.py", nodes=3, slots=(2, 2, 2), processes=6, options=options, under_slurm=True
    )
    return load_framework("mpi").command(inputs)


# What is planned


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mca": "btl"}, "mpi has no option 'mca'"),
        ({"launcher": "ssh"}, "mpi.launcher=ssh"),
        ({"flavour": "mpitch"}, "mpi.flavour=mpitch"),
        ({"map-by": ""}, "mpi.map-by has no value"),
        ({"pmi": "pmix"}, "mpi.pmi is for srun"),
    ],
)
def test_what_it_refuses(options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        command(**options)


def test_a_word_that_is_nearly_right_is_suggested() -> None:
    with pytest.raises(UserError) as caught:
        command(flavour="mpitch")
    assert "mpich" in str(caught.value.problems[0].hint)


def test_under_srun_it_runs_once_and_only_where_slurm_is() -> None:
    assert command(launcher="srun", pmi="pmi2").once
    assert "sitecustomize.py" not in command(launcher="srun").files  # nodes would not find it
    assert not command().once
    inputs = LaunchInputs(script="x.py", options={"launcher": "srun"})
    with pytest.raises(UserError, match="only a Slurm cluster has srun"):
        load_framework("mpi").command(inputs)


def test_the_compose_file_of_a_job_under_srun_has_mpirun() -> None:
    job = JobSpec(framework="mpi", script="x.py", launcher_options={"launcher": "srun"})
    plan = make_plan(job, ClusterSpec(name="c", kind=ClusterKind.SLURM), workdir="/tmp")
    assert "--launcher=srun" in plan.command.argv
    assert "--launcher=srun" not in plan.one_host_command.argv


def test_what_is_looked_for_before_a_job_is_what_its_launcher_looks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(TEMPLATES))
    monkeypatch.setitem(sys.modules, PEERS.removesuffix(".py"), peers)
    launcher = load(TEMPLATES / "mpi_launch.py")
    assert mpirun_names(command()) == launcher.ANY
    for flavour, names in launcher.PROGRAMS.items():
        assert set(names) <= set(mpirun_names(command(flavour=flavour)))
    assert mpirun_names(command(mpirun="/opt/mpirun")) == ("/opt/mpirun",)
    assert mpirun_names(command(launcher="srun")) == ()


def test_a_program_that_is_no_python_starts_as_it_is() -> None:
    job = load_framework("mpi").command(LaunchInputs(script="./all_reduce_perf", args=("-b", "8")))
    assert job.argv[-4:] == ("--processes=1", "./all_reduce_perf", "-b", "8")
    python = load_framework("mpi").command(LaunchInputs(script="x.py"))
    assert python.argv[-3:] == ("python3", "-u", "x.py")


# What runs on the nodes


class Job:
    """The nodes of a job, all on this machine, and a program `mpirun` of this test's own."""

    def __init__(self, folder: Path, slots: str, mpirun: str = MPIRUN) -> None:
        self.folder = folder
        self.slots = slots
        self.names = [f"n{number}" for number in range(len(slots.split()))]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1] - 1
        (folder / "bin").mkdir()
        program = folder / "bin" / "mpirun"
        program.write_text(mpirun)
        program.chmod(0o755)

    def start(self, rank: int, *words: str, **more: str) -> subprocess.Popen[str]:
        tmp = self.folder / f"tmp {rank}"
        tmp.mkdir()
        for name, text in command().files.items():
            (tmp / name).write_text(text)
        environment = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "CK_NODES": " ".join(self.names),
            "CK_SLOTS": self.slots,
            "CK_NNODES": str(len(self.names)),
            "CK_NODE_RANK": str(rank),
            "CK_NODE_NAME": self.names[rank],
            "CK_HEAD_ADDR": "127.0.0.1",
            "CK_PORT": str(self.port),
            "CK_TMP": str(tmp),
            "CK_TOKEN": "the same on all nodes",
            "CK_FAILURE": str(self.folder / "failure.json"),
            "MPI_SEEN": str(self.folder / "seen"),
            **more,
        }
        return subprocess.Popen(
            [sys.executable, str(tmp / "mpi_launch.py"), *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, code: str, *words: str, processes: int = 99, **more: str) -> list[Any]:
        """Run a job of Python code; return output and exit code of each node."""
        words = (*words, f"--processes={processes}", sys.executable, "-c", code)
        nodes = [self.start(rank, *words, **more) for rank in range(len(self.names))]
        return [(node.communicate(timeout=60)[0], node.returncode) for node in nodes]


def test_ranks_have_the_programs_of_their_node_and_not_those_of_mpi(tmp_path: Path) -> None:
    job = Job(tmp_path, "1 1")
    for output, code in job.run("import os; print(os.environ['PATH'])"):
        assert (output.strip(), code) == (f"{job.folder}/bin:{os.environ['PATH']}", 0)


@pytest.mark.parametrize(("slots", "processes"), [("2 2", 4), ("1 3 2", 6), ("2 2", 3), ("2 2", 1)])
def test_each_rank_is_told_who_it_is_and_prints_on_its_own_node(
    tmp_path: Path, slots: str, processes: int
) -> None:
    ended = Job(tmp_path, slots).run(TELL, processes=processes)
    assert [code for _, code in ended] == [0] * len(ended), "".join(out for out, _ in ended)
    first, wanted = 0, []
    for node, room in enumerate(int(count) for count in slots.split()):
        count = min(room, processes - first)
        wanted.append(
            [
                [str(first + k), str(k), str(processes), str(count), str(node), "127.0.0.1"]
                for k in range(count)
            ]
        )
        first += count
    told = [sorted(json.loads(line) for line in output.splitlines()) for output, _ in ended]
    assert told == wanted


def test_the_first_rank_that_fails_is_named_and_every_node_has_its_exit_code(
    tmp_path: Path,
) -> None:
    code = "import os, sys; sys.exit(7 if os.environ['RANK'] == '3' else 0)"
    ended = Job(tmp_path, "2 2 1").run(code)
    assert [code for _, code in ended] == [7, 7, 7], ended
    told = json.loads((tmp_path / "failure.json").read_text())
    assert [told[name] for name in ("node", "rank", "local_rank", "exit_code")] == ["n1", 3, 1, 7]


@pytest.mark.parametrize(("end", "exit_code"), [(RAISES, 1), (DIES, 137)], ids=["raise", "kill"])
def test_who_loses_a_rank_of_another_node_is_not_blamed(
    tmp_path: Path, end: str, exit_code: int
) -> None:
    Job(tmp_path, "1 1").run(LOSES.format(folder=str(tmp_path)) + end)
    told = json.loads((tmp_path / "failure.json").read_text())
    assert [told[name] for name in ("node", "rank", "exit_code")] == ["n1", 1, exit_code]


def test_an_mpirun_that_is_killed_ends_every_node_as_a_shell_would_say(tmp_path: Path) -> None:
    killed = "#!/bin/sh\ncase $1 in --version) echo '(Open MPI) 4.1.4'; exit ;; esac\nkill -9 $$\n"
    ended = Job(tmp_path, "1 1", mpirun=killed).run("")
    assert [code for _, code in ended] == [137, 137], ended


def test_what_open_mpi_is_told(tmp_path: Path) -> None:
    Job(tmp_path, "1 1").run("", "--map-by=node", GLOO_SOCKET_IFNAME="lo", SLURM_JOB_ID="7")
    words = (tmp_path / "seen").read_text().splitlines()
    assert words[:-5] == [
        "--hostfile", "mpi_hostfile", "--wdir", "/", "--map-by", "node", "--bind-to", "none",
    ]  # fmt: skip
    assert words[-5:-3] == ["-np", "2"]
    told = dict(line.partition("=")[::2] for line in (tmp_path / "seen.env").open())
    assert told["OMPI_MCA_btl_tcp_if_include"] == "127.0.0.1/8\n"
    assert told["OMPI_MCA_plm"] == "rsh\n"  # not Slurm's, which would start daemons by srun
    assert told["TMPDIR"] == told["CK_TMP"]
    assert ("OMPI_ALLOW_RUN_AS_ROOT" in told) is (os.geteuid() == 0)


def test_a_variable_of_the_user_beats_ours(tmp_path: Path) -> None:
    Job(tmp_path, "1 1").run("", OMPI_MCA_plm_rsh_num_concurrent="3", OMPI_MCA_plm="rsh")
    assert "OMPI_MCA_plm_rsh_num_concurrent=3\n" in (tmp_path / "seen.env").open()


@pytest.mark.parametrize(
    ("says", "name"),
    [
        ("HYDRA build details:", "HYDRA_LAUNCHER_EXTRA_ARGS"),
        ("Intel(R) MPI Library", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"),
    ],
)
def test_what_slurm_tells_hydras_own_srun_is_not_told_our_agent(
    tmp_path: Path, says: str, name: str
) -> None:
    """Slurm since 23.11 puts `--external-launcher` there in every job."""
    hydra = f"#!/bin/sh\n[ $1 != --version ] || exec echo '{says}'\nenv >$MPI_SEEN.env\n"
    ended = Job(tmp_path, "1 1", mpirun=hydra).run("", **{name: "--external-launcher"})
    assert [code for _, code in ended] == [0, 0], ended
    assert f"{name}=mpi_agent.sh\n" in (tmp_path / "seen.env").open()


def test_on_slurm_a_rank_is_told_what_srun_would_have(tmp_path: Path) -> None:
    names = ("PROCID", "LOCALID", "NODEID", "NNODES", "NTASKS", "NTASKS_PER_NODE")
    code = f"import os; print(*(os.environ['SLURM_' + name] for name in {names}), flush=True)"
    ended = Job(tmp_path, "1 1").run(code, SLURM_JOB_ID="7", SLURM_PROCID="9", SLURM_NTASKS="2")
    assert [output for output, _ in ended] == ["0 0 0 2 2 1\n", "1 0 1 2 2 1\n"]


def test_without_mpi_the_message_says_what_to_do(tmp_path: Path) -> None:
    job = Job(tmp_path, "1 1", mpirun="#!/bin/sh\necho something else\n")
    (output, code), (_, other) = job.run("", "--mpirun=mpirun")
    assert (code, other) == (127, 127)
    assert "no mpirun of Open MPI, MPICH or Intel MPI on n0: install it" in output


def test_who_does_not_know_the_token_gets_no_command(tmp_path: Path) -> None:
    job = Job(tmp_path, "1 1")
    words = ("--processes=2", sys.executable, "-c", "print('was run')")
    head = job.start(0, *words)
    stranger = job.start(1, *words, CK_TOKEN="guessed, and wrongly")
    time.sleep(3)
    for node in (stranger, head):
        node.send_signal(signal.SIGTERM)
    output, _ = stranger.communicate(timeout=60)
    assert "was run" not in output
    head.communicate(timeout=60)


def test_a_node_that_is_told_to_end_ends_its_daemons(tmp_path: Path) -> None:
    job = Job(tmp_path, "1 1")
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(300)"
    words = ("--processes=2", sys.executable, "-c", code)
    nodes = [job.start(rank, *words) for rank in range(2)]
    pids = [int(node.stdout.readline()) for node in nodes if node.stdout is not None]
    for node in nodes:
        node.send_signal(signal.SIGTERM)
    assert all(node.wait(60) for node in nodes)  # the command takes longer
    assert pids
    deadline = time.monotonic() + 120
    while left := list(processes_with(f"CK_TMP={tmp_path}/tmp")):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def processes_with(variable: str) -> Iterator[int]:
    """Yield the processes whose environment begins a variable like this."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if variable.encode() in path.read_bytes():
                yield int(path.parent.name)
