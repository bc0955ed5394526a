"""The practice cluster keeps its promises."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import fabric
import pytest

from tests.helpers.lab_jobs import is_soon
from tests.helpers.paths import ROOT
from tests.lab import Lab, LabError, MissingToolsError, slurm
from tests.lab.hosts import find_holders, pid_namespace, pids, read_cmdline
from tests.lab.layout import Layout, require_tools

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.lab


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def members(cluster: Lab) -> set[int]:
    """Return every process in the hosts of a lab, and those that name its folder."""
    namespaces = {pid_namespace(pid) for pid in find_holders(cluster.root).values()}
    inside = {pid for pid in pids() if pid_namespace(pid) in namespaces}
    named = {pid for pid in pids() if any(str(cluster.root) in part for part in read_cmdline(pid))}
    return inside | named


_OF_OTHER_TESTS = r" /tmp/(?!lab-)"
"""Mounts that tests beside this one make, and remove, meanwhile; `own_lab` is in /tmp/lab-*."""


def machine() -> dict[str, object]:
    """Return what the lab must leave as it was on the machine."""
    links = subprocess.run(
        ["ip", "-oneline", "link"], capture_output=True, text=True, check=True
    ).stdout
    folders = ("/run", "/var/log", "/var/spool", "/var/lib", "/etc", "/sys/fs/cgroup")
    words = ("slurm", "munge", "ssh", "mysql", "mariadb")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "mounts": [line for line in mounts if not re.search(_OF_OTHER_TESTS, line)],
        "links": [line.split(":")[1] for line in links.splitlines()],
        "routes": Path("/proc/net/route").read_text(),
        "hostname": os.uname().nodename,
        "hosts file": Path("/etc/hosts").read_text(),
        "files": sorted(
            str(path)
            for folder in folders
            for path in Path(folder).glob("*/*")
            if any(word in str(path) for word in words)
        ),
    }


def test_srun_reaches_every_node(lab: Lab) -> None:
    """One task per node, each under its own host name."""
    done = lab.run("head", ["srun", "-N3", "hostname"])
    assert sorted(done.stdout.split()) == ["n1", "n2", "n3"], done.stderr


def test_sbatch_runs_python_soon(lab: Lab) -> None:
    """A batch job starts within seconds and has this Python."""
    output = lab.shared / "batch.out"
    wrap = f"{sys.executable} -c 'import socket; print(socket.gethostname())'"
    start = time.monotonic()
    lab.run("head", ["sbatch", "--wait", f"--output={output}", f"--wrap={wrap}"], check=True)
    seconds = time.monotonic() - start
    assert output.read_text().strip() in lab.nodes
    assert is_soon(lab, seconds)


def test_pretend_gpus_are_handed_out(lab: Lab) -> None:
    """Slurm gives the first two of four GPUs on each node, none without a request."""
    show = ["sh", "-c", "echo ${CUDA_VISIBLE_DEVICES-none}"]
    two = lab.run("head", ["srun", "-N2", "--gpus-per-node=2", *show], check=True)
    assert two.stdout.split() == ["0,1", "0,1"]
    assert lab.run("head", ["srun", *show], check=True).stdout.split() == ["none"]


def test_jobs_share_a_node(lab: Lab) -> None:
    """Two small jobs run side by side on one node."""
    outer = ["srun", "-w", "n1", "-n1", "srun", "--overlap", "hostname"]
    first = lab.popen("head", ["srun", "-w", "n1", "sleep", "300"])
    try:
        wait_for(lambda: bool(lab.processes("n1", "(^|/)sleep 300")))
        assert lab.run("head", outer, timeout_s=120).stdout.strip() == "n1"
    finally:
        os.killpg(first.pid, signal.SIGTERM)
        first.communicate(timeout=120)


def test_ssh_between_hosts_verifies_keys(lab: Lab) -> None:
    """A bare ssh works between hosts, and refuses a host whose key is not known."""
    assert lab.run("n1", ["ssh", "n2", "hostname"], check=True).stdout == "n2\n"
    assert lab.run("n3", ["ssh", "10.77.0.254", "hostname"], check=True).stdout == "head\n"
    stranger = lab.run("n1", ["ssh", "-o", "UserKnownHostsFile=/dev/null", "n2", "true"])
    assert stranger.returncode == 255
    assert "Host key verification failed" in stranger.stderr


def test_ssh_from_outside(lab: Lab) -> None:
    """OpenSSH and fabric reach a host by name from the machine itself."""
    argv = ["ssh", "-F", str(lab.ssh_config), "n3", "hostname; squeue --noheader | wc -l"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.split()[:1] == ["n3"], done.stderr
    config = fabric.Config(runtime_ssh_path=str(lab.ssh_config))
    with fabric.Connection("n2", config=config) as connection:
        assert connection.run("hostname", hide=True, in_stream=False).stdout == "n2\n"


def test_hosts_talk_tcp_but_share_no_memory(lab: Lab) -> None:
    """Ports are reachable by host name; /dev/shm is private, /tmp is shared."""
    serve = (
        "import socket; s = socket.create_server(('', 29500)); print('up', flush=True);"
        "c, peer = s.accept(); c.sendall(peer[0].encode())"
    )
    ask = "import socket; print(socket.create_connection(('n2', 29500), 60).recv(99).decode())"
    server = lab.popen("n2", [sys.executable, "-c", serve])
    assert server.stdout is not None
    assert server.stdout.readline() == "up\n"
    assert lab.run("n1", [sys.executable, "-c", ask], check=True).stdout == "10.77.0.1\n"
    server.communicate(timeout=60)

    lab.run("n1", ["touch", "/dev/shm/mine", str(lab.shared / "ours")], check=True)
    assert lab.run("n2", ["ls", "/dev/shm/mine"]).returncode
    assert lab.run("n2", ["ls", str(lab.shared / "ours")]).returncode == 0


def test_run_passes_input_environment_folder_and_time_limit(lab: Lab) -> None:
    """``run`` gives a command what it was told to, and leaves no child behind."""
    done = lab.run(
        "n1",
        ["sh", "-c", "cat; pwd; echo $A $SLURM_CONF"],
        input="in\n",
        cwd="/usr",
        env={"A": "b"},
    )
    assert done.stdout == f"in\n/usr\nb {lab.root}/slurm/slurm.conf\n"
    with pytest.raises(subprocess.TimeoutExpired):
        lab.run("n1", ["sh", "-c", "sleep 4711 & sleep 4711"], timeout_s=0.5)
    wait_for(lambda: not lab.processes("n1", "sleep 4711"))
    with pytest.raises(LabError, match="exit 3"):
        lab.run("n1", ["sh", "-c", "exit 3"], check=True)


def test_up_twice_changes_nothing(lab: Lab) -> None:
    """A second ``up`` starts no process and breaks no job."""
    daemons = "^(munged|slurmd|slurmctld|sshd: .*listener|/bin/sh .*holder.sh)"
    before = [lab.processes(host, daemons) for host in lab.hosts]
    assert {len(found) for found in before} == {4}
    lab.up()
    assert [lab.processes(host, daemons) for host in lab.hosts] == before


def test_down_leaves_nothing(own_lab: Lab) -> None:
    """After ``down``, with a job running, the machine is as it was."""
    before = machine()
    start = time.monotonic()
    own_lab.up(nodes=2)
    assert is_soon(own_lab, time.monotonic() - start)
    deaf = "--wrap=srun sh -c 'trap : TERM; sleep 4712; sleep 4713'"
    own_lab.run("head", ["sbatch", "-N2", "--output=/dev/null", deaf])
    wait_for(lambda: all(own_lab.processes(node, "(^|/)sleep 4712") for node in own_lab.nodes))
    ended = members(own_lab)
    assert len(ended) > 10
    own_lab.down()
    assert not {pid for pid in ended if read_cmdline(pid)}
    assert not members(own_lab)
    assert not own_lab.root.exists()
    assert machine() == before
    own_lab.down()


def test_dead_hosts_come_back(own_lab: Lab) -> None:
    """``up`` brings back a killed node, a killed head and a killed switch."""
    own_lab.up(nodes=2)
    untouched = own_lab.processes("n1", "^slurmd")[0].pid
    own_lab.kill_host("n2")
    with pytest.raises(LabError, match="n2"):
        own_lab.run("n2", ["true"])
    assert not own_lab.is_up()
    own_lab.up()
    assert own_lab.processes("n1", "^slurmd")[0].pid == untouched
    for host in ("switch", "head"):
        own_lab.kill_host(host)
        own_lab.up()
        done = own_lab.run("head", ["srun", "-N2", "hostname"], timeout_s=120)
        assert sorted(done.stdout.split()) == ["n1", "n2"], done.stderr
        assert own_lab.run("n1", ["ssh", "n2", "hostname"]).stdout == "n2\n"


def test_up_after_a_crash_starts_afresh(own_lab: Lab) -> None:
    """A folder whose hosts are all gone is removed; other people's folders are not."""
    own_lab.up(nodes=1)
    (own_lab.shared / "old").touch()
    for pid in find_holders(own_lab.root).values():
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not find_holders(own_lab.root))
    own_lab.up(nodes=2)
    assert own_lab.nodes == ("n1", "n2")
    assert not (own_lab.shared / "old").exists()
    with pytest.raises(LabError, match="runs with 2 nodes"):
        own_lab.up(nodes=3)

    foreign = own_lab.root.parent / "home"
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    for action in (Lab(foreign).up, Lab(foreign).down):
        with pytest.raises(LabError, match="other files"):
            action()
    assert (foreign / "thesis.tex").exists()


def test_up_after_the_folder_was_deleted(own_lab: Lab) -> None:
    """Hosts that lost their folder are ended, not joined."""
    own_lab.up(nodes=1)
    stray = members(own_lab)
    shutil.rmtree(own_lab.root)
    own_lab.up(nodes=1)
    assert not stray & members(own_lab)
    assert own_lab.run("head", ["srun", "hostname"]).stdout == "n1\n"


def test_command_line(own_lab: Lab) -> None:
    """Every verb works, and what cannot be done exits 2 with a reason."""
    environment = {**os.environ, "CLUSTERKIT_LAB": str(own_lab.root)}

    def call(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "tests.lab", *arguments]
        return subprocess.run(
            argv, env={**environment, **changes}, cwd=ROOT,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    assert call("status").returncode == 1
    assert call("exec", "n1", "--", "true").returncode == 2
    assert "head n1 " in call("up", "--nodes", "1").stdout
    assert call("exec", "n1", "--", "sh", "-c", "hostname; exit 7").returncode == 7
    assert "idle" in call("status").stdout
    assert f"SLURM_CONF={own_lab.root}" in call("env").stdout
    crowded = call("up", "--nodes", "2")
    assert crowded.returncode == 2
    assert "runs with 1 nodes" in crowded.stderr
    assert call("down").returncode == 0
    assert not own_lab.root.exists()


def test_missing_tools_are_named() -> None:
    """The reason names the program and the line that installs it."""
    if os.geteuid() != 0:
        with pytest.raises(MissingToolsError, match="root"):
            require_tools()
        return
    with pytest.raises(
        MissingToolsError, match=r"missing no-such-tool: apt-get install .*slurm-wlm"
    ):
        require_tools(["no-such-tool", "sh"])


def test_what_a_cloud_node_is_told_while_it_reads_is_not_lost(tmp_path: Path) -> None:
    """As on a busy machine: a node that is called off while it reads that it boots is not up."""
    layout = Layout(root=tmp_path / "lab", nodes=1, cloud=1)
    layout.slurm_conf.parent.mkdir(parents=True)
    slurm.write_slurm(layout)
    node, told = layout.power / "n1", tmp_path / "told"
    programs = {
        "scontrol": "echo n1",
        "cat": f'/bin/cat "$@"; echo read >>{told}; sleep 1',
        "slurmd": f"echo boots >>{told}",
        "pkill": f"echo stops >>{told}",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    argv = slurm.daemons(layout, "n1")["powered"][2:]
    with subprocess.Popen(argv, env=env, start_new_session=True) as powered:
        try:
            subprocess.run([layout.power / "resume", "n1"], env=env, check=True)
            wait_for(told.exists)
            subprocess.run([layout.power / "suspend", "n1"], env=env, check=True)
            wait_for(lambda: "stops" in told.read_text() and not node.exists())
        finally:
            os.killpg(powered.pid, signal.SIGKILL)
    assert "boots" not in told.read_text()
