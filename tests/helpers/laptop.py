"""A laptop beside the practice cluster: it has no network, and reaches only the head, by ssh.

It is a process with a network namespace in which there is nothing, and with mounts of its own, in
which the shared folder of the lab is empty. ssh gets to the head by the lab's proxy command.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.helpers.lab_jobs import await_true
from tests.lab.lab import Lab
from tests.lab.layout import tool_path

CONFIG = """\
default_cluster: {name}
clusters:
  {name}:
    kind: slurm
    login: head
    partition: gpu
    gpu_request: none
    time: "5"
    python: {python}
    run_dir: {runs}
    venv: {prefix}
"""
_BEHIND = """\
Host {jump} behind
    User root
    IdentityFile none
    IdentityAgent {agent}
    UserKnownHostsFile {known}
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    BatchMode yes
Host behind
    HostName head
    ProxyJump {jump}
"""
_ENTER = """
mount --bind "$1" /etc/ssh/ssh_config && mount -t tmpfs none "$2" && cd "$3" || exit 99
shift 3
exec "$@"
"""


@dataclass(frozen=True)
class Laptop:
    """Where somebody works who has ssh to the head and nothing else."""

    lab: Lab
    home: Path
    folder: Path
    cluster: str
    login: str = "head"

    def argv(self, *words: str) -> list[str]:
        """Return the command line that runs a command on the laptop."""
        own = ["unshare", "--net", "--mount", "--propagation", "private", "bash", "-c", _ENTER, "x"]
        return [*own, str(self.home / "ssh_config"), str(self.lab.shared), str(self.folder), *words]

    def popen(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """Start clusterkit there."""
        environment = {"PATH": tool_path(), "HOME": str(self.home), "LANG": "C.UTF-8"}
        argv = self.argv(sys.executable, "-m", "clusterkit", *words)
        pipe = subprocess.PIPE
        return subprocess.Popen(
            argv, env=environment, stdout=pipe, stderr=pipe, text=True, **more
        )  # fmt: skip

    def clusterkit(
        self, *words: str, given: str | None = None, timeout_s: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run clusterkit there to its end."""
        stdin = subprocess.DEVNULL if given is None else subprocess.PIPE
        with self.popen(*words, stdin=stdin) as process:
            try:
                out, err = process.communicate(given, timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def commit(self) -> str:
        """Return the commit that its project is at."""
        argv = ["git", "-C", str(self.folder), "rev-parse", "HEAD"]
        return subprocess.run(argv, capture_output=True, check=True, text=True).stdout.strip()

    def cut(self) -> None:
        """Break the connection that its commands share."""
        socket = f"ControlPath={self.home}/.cache/clusterkit/ssh/%C"
        subprocess.run(
            self.argv("ssh", "-o", socket, "-O", "exit", self.login),
            capture_output=True,
            check=False,
        )

    @contextmanager
    def behind(self, jump: str) -> Iterator[Laptop]:
        """Give it where only the host `jump` can be reached, and the key is an agent's alone."""
        outside, agent = self.lab.ssh_config.read_text(), self.home / "agent"
        proxy = re.search(rf"^Host {jump}\n +ProxyCommand .*\n", outside, re.MULTILINE)
        assert proxy is not None
        ssh = self.lab.layout.ssh
        usual = (self.home / "ssh_config").read_text()
        jumps = _BEHIND.format(jump=jump, agent=agent, known=ssh / "known_hosts")
        (self.home / "ssh_config").write_text(proxy[0] + jumps)
        config = self.folder / "clusterkit.yaml"
        text = config.read_text()
        config.write_text(text.replace("    login: head\n", "    login: behind\n"))
        laptop = replace(self, login="behind")
        with subprocess.Popen(["ssh-agent", "-D", "-a", agent], stdout=subprocess.DEVNULL) as keeps:
            try:
                await_true(agent.exists)
                environment = {**os.environ, "SSH_AUTH_SOCK": str(agent)}
                add = ["ssh-add", "-q", str(ssh / "id_ed25519")]
                subprocess.run(add, check=True, env=environment)
                yield laptop
            finally:
                laptop.cut()
                keeps.terminate()
                config.write_text(text)
                (self.home / "ssh_config").write_text(usual)


@contextmanager
def laptop_of(lab: Lab, folder: Path, name: str) -> Iterator[Laptop]:
    """Give a laptop whose project is in `folder`; `name` is that of its cluster."""
    # Paths of sockets are short.
    home = Path(tempfile.mkdtemp(prefix="ck-", dir="/tmp"))
    laptop = Laptop(lab, home, folder, name)
    head, _, _ = lab.ssh_config.read_text().partition("Host n1\n")
    (home / "ssh_config").write_text(head)
    runs = lab.shared / name
    text = CONFIG.format(name=name, python=sys.executable, runs=runs, prefix=sys.prefix)
    (folder / "clusterkit.yaml").write_text(text)
    try:
        yield laptop
    finally:
        laptop.cut()
        lab.run("head", ["bash", "-c", f'rm -f "$HOME"/.clusterkit/relay/{name}-*'])
        shutil.rmtree(home)
