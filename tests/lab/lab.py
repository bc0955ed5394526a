"""The practice cluster as one object: start, use, stop."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from clusterkit.core import timing
from tests.helpers.warm_clients import ROOT, WarmClients
from tests.lab import accounting as accounts
from tests.lab import folder, hosts, slurm, sshd
from tests.lab.layout import (
    HEAD,
    MAX_NODES,
    SWITCH,
    TOOLS,
    LabError,
    Layout,
    default_root,
    require_tools,
    tool_path,
    write_etc,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

IO_Target = int | IO[Any] | None
UNSCALED = {timing.VARIABLE: "1"}
"""The environment of a client whose job keeps the times of normal use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProcess:
    """A process of a host: its number here, its number there, its arguments."""

    pid: int
    inner_pid: int
    argv: tuple[str, ...]


class Lab:
    """A practice cluster, living in one folder; several can run side by side.

    Nothing is started by the constructor. All state is in the folder and in the holder
    processes, so any process can make a ``Lab`` of a running one and use it.
    """

    def __init__(self, root: Path | None = None) -> None:
        """Name the lab in ``root`` (default: ``CLUSTERKIT_LAB`` or /tmp/clusterkit-lab)."""
        self.root = root.absolute() if root else default_root()
        self.time_scale: str | None = None
        """What clusterkit's waiting times are multiplied with on the hosts; None for nothing."""
        self.warm = False
        """Whether clients that `run` starts on the head are forked where that is the same."""
        self._clients: tuple[int, WarmClients] | None = None
        self._starts_clients = threading.Lock()
        self._holders: dict[str, int] = {}
        """Those that were found; each is looked at again before it is used."""

    @property
    def layout(self) -> Layout:
        """Return names and paths of the lab as it was started.

        Raises:
            LabError: It was not started.
        """
        layout = folder.read_layout(self.root)
        if layout is None:
            raise LabError(f"no lab in {self.root}: python -m tests.lab up")
        return layout

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the compute hosts, ``n1`` to ``nN``."""
        return self.layout.node_names

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return every host, ``head`` first."""
        return self.layout.hosts

    @property
    def shared(self) -> Path:
        """Return a folder that all hosts and the machine see (so is /tmp as a whole)."""
        return self.layout.shared

    @property
    def ssh_config(self) -> Path:
        """Return the ssh configuration for programs that run outside the hosts."""
        return self.layout.ssh / "outside_config"

    def env(self) -> dict[str, str]:
        """Return the environment of a login on a host, with ``SLURM_CONF``."""
        return {
            "PATH": tool_path(),
            "HOME": os.environ.get("HOME", "/root"),
            "USER": "root",
            "LOGNAME": "root",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self.layout.slurm_conf),
            "CLUSTERKIT_LAB": str(self.root),
            **({timing.VARIABLE: self.time_scale} if self.time_scale else {}),
        }

    def is_up(self) -> bool:
        """Tell whether every host of the lab lives (its daemons are not asked)."""
        layout = folder.read_layout(self.root)
        return layout is not None and {SWITCH, *layout.hosts} <= set(hosts.find_holders(self.root))

    def up(
        self,
        nodes: int | None = None,
        *,
        accounting: bool | None = None,
        cloud: int | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        """Start what is not running, and wait until every node takes jobs.

        Heals: a host or daemon that died is started again, the others are left alone.

        Args:
            nodes: Compute hosts; default is what runs, else 3.
            accounting: Whether slurmdbd and its database run too; default is what runs, else no.
            cloud: How many of the nodes, the last ones, are cloud nodes, powered down at first;
                default is what runs, else none.
            timeout_s: How long Slurm may take to call every node idle.

        Raises:
            MissingToolsError: This machine cannot run a lab.
            LabError: It did not come up, or runs with another number of nodes, or with
                accounting where there should be none, or without.
        """
        require_tools((*TOOLS, *accounts.TOOLS) if accounting else TOOLS)
        if nodes is not None and not 1 <= nodes <= MAX_NODES:
            raise LabError(f"nodes must be 1 to {MAX_NODES}, not {nodes}")
        with folder.locked(self.root):
            layout = self._prepare(nodes, accounting, cloud)
            living = hosts.find_holders(self.root)
            for host in (SWITCH, *layout.hosts):
                if host not in living:
                    hosts.start_holder(layout, host)
            holders = hosts.find_holders(self.root)
            sshd.write_outside_config(layout, holders)
            for host in layout.hosts:
                hosts.link(layout, holders, host)
            for host in layout.hosts:
                if HEAD in living and host not in {*living, *layout.cloud_names}:
                    self.call_down(host)
                self._start_daemons(layout, host)
            self._wait_idle(layout, timeout_s)

    def down(self, *, keep: bool = False) -> None:
        """End every process of the lab and remove its folder (logs too, unless ``keep``)."""
        self.end_clients()
        if not self.root.exists() and not hosts.find_holders(self.root):
            return
        with folder.locked(self.root):
            hosts.kill_holders(list(hosts.find_holders(self.root).values()))
            if not keep:
                folder.clear(self.root)
                folder.remove(self.root)

    def kill_host(self, host: str) -> None:
        """Cut a host's power: all its processes end at once; ``up`` brings it back."""
        hosts.kill_holders([self._holder(host)])

    def call_down(self, node: str) -> None:
        """Have Slurm call a node down until its slurmd starts, and end no more jobs there.

        Of itself it asks a node that was away to end its jobs after as much as two minutes, and
        starts none there before.
        """
        scontrol = ["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=was away"]
        self.run(HEAD, scontrol, check=True)

    def run(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        timeout_s: float = 60.0,
        input: str | None = None,  # noqa: A002 - its name in subprocess.run
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host and return its output.

        Args:
            host: A name of ``hosts``.
            argv: The command; no shell reads it.
            env: Variables on top of ``self.env()``; nothing else is inherited.
            cwd: Folder to run in; default is the current one.
            timeout_s: After this the command and its children are killed.
            input: Text for its standard input; default is none at all.
            check: Raise on a non-zero exit.

        Raises:
            subprocess.TimeoutExpired: It took longer than ``timeout_s``.
            LabError: The host is not up, or ``check`` and it failed; carries the output.
        """
        whole = {**self.env(), **(env or {})}
        clients = self._warm_clients() if self.warm and host == HEAD and input is None else None
        if clients is not None and clients.takes(argv, whole):
            done = clients.run(argv, env=whole, cwd=cwd or Path.cwd(), timeout_s=timeout_s)
        else:
            stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
            with self.popen(host, argv, env=env, cwd=cwd, stdin=stdin) as process:
                try:
                    out, err = process.communicate(input, timeout=timeout_s)
                except BaseException:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    raise
            done = subprocess.CompletedProcess(list(argv), process.returncode, out, err)
        if check and done.returncode:
            raise LabError(
                f"{host}: {list(argv)} exit {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done

    def popen(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: IO_Target = subprocess.DEVNULL,
        stdout: IO_Target = subprocess.PIPE,
        stderr: IO_Target = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command on a host.

        The process returned is nsenter, leader of a process group that holds the command
        too: signal the group (``os.killpg(process.pid, ...)``), nsenter passes none on.
        """
        entered = hosts.enter_argv(
            self._holder(host), argv, env={**self.env(), **(env or {})}, cwd=cwd or Path.cwd()
        )
        return subprocess.Popen(
            entered, stdin=stdin, stdout=stdout, stderr=stderr, text=True, start_new_session=True
        )

    def processes(self, host: str, pattern: str = "") -> list[HostProcess]:
        """Return the processes of a host whose command line matches a regular expression."""
        namespace = hosts.pid_namespace(self._holder(host))
        found = []
        for pid in hosts.pids():
            if hosts.pid_namespace(pid) != namespace:
                continue
            argv = hosts.read_cmdline(pid)
            if not argv or not re.search(pattern, " ".join(argv)):
                continue
            if (inner := hosts.inner_pid(pid)) is not None:
                found.append(HostProcess(pid=pid, inner_pid=inner, argv=argv))
        return found

    def end_clients(self) -> None:
        """End the process of the head that forks clients, where there is one."""
        if self._clients is not None:
            self._clients[1].close()
            self._clients = None

    def _warm_clients(self) -> WarmClients:
        """Return what forks clients on the head that lives now."""
        holder = self._holder(HEAD)
        with self._starts_clients:
            if self._clients is None or self._clients[0] != holder:
                self.end_clients()
                self._clients = (holder, WarmClients(self._start_clients, self.env()))
            return self._clients[1]

    def _start_clients(self, argv: Sequence[str], control: socket.socket) -> subprocess.Popen[str]:
        return self.popen(HEAD, argv, cwd=ROOT, stdin=control.fileno(), stderr=subprocess.STDOUT)

    def _holder(self, host: str) -> int:
        """Return the holder of a living host."""
        pid = self._holders.get(host)
        if pid is None or hosts.held_by(self.root, pid) != host:
            self._holders = hosts.find_holders(self.root)
            pid = self._holders.get(host)
        if pid is None:
            raise LabError(f"host {host} of {self.root} is not up: python -m tests.lab up")
        return pid

    def _prepare(self, nodes: int | None, accounting: bool | None, cloud: int | None) -> Layout:
        """Write all files of the lab; whatever a crash left behind goes first."""
        living = hosts.find_holders(self.root)
        layout = folder.read_layout(self.root)
        if layout is None or not living:
            hosts.kill_holders(list(living.values()))
            folder.clear(self.root)
            layout = Layout(
                root=self.root,
                nodes=3 if nodes is None else nodes,
                accounting=bool(accounting),
                cloud=cloud or 0,
            )
            folder.mark(layout)
        elif nodes not in (None, layout.nodes):
            raise LabError(f"runs with {layout.nodes} nodes: python -m tests.lab down first")
        elif accounting not in (None, layout.accounting):
            how = "with" if layout.accounting else "without"
            raise LabError(f"runs {how} accounting: python -m tests.lab down first")
        elif cloud not in (None, layout.cloud):
            raise LabError(f"runs with {layout.cloud} cloud nodes: python -m tests.lab down first")
        write_etc(layout)
        slurm.write_slurm(layout)
        sshd.write_ssh(layout)
        layout.shared.mkdir(exist_ok=True)
        return layout

    def _start_daemons(self, layout: Layout, host: str) -> None:
        """Start the daemons of a host that do not run."""
        wanted = {**slurm.daemons(layout, host), "sshd": sshd.daemon(layout, host)}
        running = {Path(process.argv[0]).name for process in self.processes(host)}
        running |= {"sshd"} if self.processes(host, r"^sshd: .*\[listener\]") else set()
        for name, argv in wanted.items():
            if name in running:
                continue
            done = self.run(host, argv, cwd="/")
            if done.returncode:
                raise LabError(f"{name} on {host}: exit {done.returncode}\n{done.stderr}")

    def _wait_idle(self, layout: Layout, timeout_s: float) -> None:
        """Wait until Slurm would start jobs on every node."""
        query = ["sinfo", "--Node", "--noheader", "--format=%N %T"]
        deadline = time.monotonic() + timeout_s
        while True:
            answer = self.run(HEAD, query)
            awake = layout.node_names[: layout.nodes - layout.cloud]
            if slurm.all_idle(answer.stdout, awake):
                return
            if time.monotonic() > deadline:
                told = f"{answer.stdout}{answer.stderr}{slurm.log_tails(layout)}"
                raise LabError(f"not all nodes are idle after {timeout_s:.0f} s:\n{told}")
            time.sleep(0.1)
