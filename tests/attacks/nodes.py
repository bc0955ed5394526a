"""Nodes of whom some are hostile: one sshd on loopback, in which each node is a key of its own.

A node's program is what its login runs whatever it is asked to (`command=` in authorized_keys). The
healthy one has none: it runs what it is sent. Some nodes are no sshd at all but a socket.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import which

import pytest

from tests.helpers.measured import wait_measured
from tests.helpers.needs import require

HEALTHY = "good"
HEALTHY_ONES = {HEALTHY: ""}
READ_TOKEN = """\
import os, re, sys, time
script = sys.stdin.buffer.read()
token = re.search(rb"CLUSTERKIT_PROBES=(\\w+)", script)[1].decode()
names = re.findall(r"^P ([\\w-]+) ", script.decode(), re.MULTILINE)
def say(line):
    os.write(1, line if isinstance(line, bytes) else line.encode("utf-8", "surrogatepass"))
def frames(text, code=0):
    say(f"{token} 0 - @ {time.time()} good\\n")
    for name in names:
        for line in text.split("\\n"):
            say(f"{token} 0 {name} o {line}\\n")
        say(f"{token} 0 {name} = {code} 1.00 2.00\\n")
    say(f"{token} 0 - = 0 - -\\n")
"""
"""The beginning of a program that speaks as our script does."""
PLAIN = "import os, sys, time\n"
PROGRAMS = {
    "flood": PLAIN + "while True: os.write(1, b'x' * 65536)\n",
    "lines": PLAIN + "while True: os.write(1, b'a line\\n' * 8192)\n",
    "stderr": PLAIN + "while True: os.write(2, b'\\x1b]0;x\\x07' * 8192)\n",
    "banner": PLAIN + "os.write(2, b'\\x1b[2J\\x1b]0;owned\\x07\\xe2\\x80\\xaenothing here\\n')\n",
    "framed": READ_TOKEN
    + "say(f'{token} 0 - @ 1 good\\n')\nwhile True: say(f'{token} 0 {names[0]} o x\\n' * 1000)\n",
    "deep": READ_TOKEN + "frames('{\"a\":' + '[' * 3000)\n",
    "digits": READ_TOKEN + "frames('cpus ' + '9' * 3700)\n",
    "clock": READ_TOKEN + "say(f'{token} 0 - @ 1e300 good\\n'); say(f'{token} 0 - = 0 - -\\n')\n",
    "numbers": READ_TOKEN + "frames('nan\\n1e400\\n-1\\n4398046511104\\n\\x1b[2J\\nend')\n",
    "surrogates": READ_TOKEN + "frames('\\ud800\\udfff\\x00\\u202e')\n",
    "liar": READ_TOKEN + "say(f'{token} 3 - @ 1 good\\n{token} 3 {names[0]} o stolen\\n')\n"
    "say(f'{token} 7 - = 0 - -\\n')\n",
}


def big_packet(peer: socket.socket) -> None:
    """Begin the handshake, and announce a packet of 4 GiB."""
    peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" + b"\xff\xff\xff\xf4")
    while True:
        peer.sendall(b"\x00" * (1 << 20))


def endless_banner(peer: socket.socket) -> None:
    """Never come to the end of the line before the handshake."""
    while True:
        peer.sendall(b"x" * (1 << 16))


def nonsense(peer: socket.socket) -> None:
    """Answer the handshake with a packet of no kind."""
    peer.sendall(b"SSH-2.0-x\r\n\x00\x00\x00\x0c\x0a\x14" + b"\xff" * 10)
    time.sleep(30)


SLOW = {"drip": PLAIN + "while True: os.write(1, b'x'); time.sleep(0.3)\n"}
"""For tests of deadlines alone: they are waited for."""
LISTENERS = {"packet": big_packet, "greeting": endless_banner, "gibberish": nonsense}


@dataclass(frozen=True, slots=True, kw_only=True)
class Farm:
    """A folder with a clusterkit.yaml whose hosts are these nodes."""

    folder: Path
    env: Mapping[str, str]

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a verb; what it prints goes to files, so that nobody has to read it meanwhile."""
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            argv = [sys.executable, "-P", "-m", "clusterkit", *words]
            return subprocess.Popen(
                argv, cwd=self.folder, env=dict(self.env), stdout=out, stderr=err
            )

    @contextmanager
    def as_user(self) -> Iterator[None]:
        """Have in this process the home of whose keys the nodes know."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", self.env["HOME"])
            patch.delenv("SSH_AUTH_SOCK", raising=False)
            yield

    def run(self, *words: str, within_s: float) -> Ran:
        """Run a verb to its end, which has to come in time."""
        began = time.monotonic()
        process = self.start(*words)
        used = wait_measured(process, within_s=within_s)
        return Ran(
            code=process.returncode,
            out=(self.folder / "out").read_bytes().decode(),
            err=(self.folder / "err").read_bytes().decode(),
            memory_mib=used.memory_mib,
            seconds=time.monotonic() - began,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a verb ended."""

    code: int
    out: str
    err: str
    memory_mib: float
    """The most that it had at a time."""
    seconds: float


@contextmanager
def farm(
    folder: Path,
    programs: Mapping[str, str] = PROGRAMS,
    healthy: Mapping[str, str] = HEALTHY_ONES,
    listening: Mapping[str, object] = LISTENERS,
) -> Iterator[Farm]:
    """Start the sshd and the listeners; all of them end with the block.

    `programs` are those of the hostile nodes, `healthy` the environments of the others.
    """
    require("root", "sshd")
    sshd = str(which("sshd", path="/usr/sbin:/sbin:/usr/local/sbin"))
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    port = _free_port()
    for name in ("host", *healthy, *programs):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / f".ssh/{name}")]
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    commands = {name: _saved(folder / f"{name}.py", text) for name, text in programs.items()}
    commands |= {name: f"exec env {words} sh" for name, words in healthy.items() if words}
    _write_sshd(folder, home, port, (*healthy, *programs), commands)
    listeners = {name: _listen(how) for name, how in listening.items()}
    others = {name: one.getsockname()[1] for name, one in listeners.items()}
    _write_client(home, port, (*healthy, *programs), others)
    hosts = ",".join((*healthy, *programs, *listening))
    (folder / "clusterkit.yaml").write_text(
        f"clusters:\n  farm:\n    kind: ssh\n    hosts: {hosts}\n    shared_filesystem: false\n"
    )
    argv = [sshd, "-D", "-e", "-f", str(folder / "sshd_config")]
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen(argv, stderr=log)
    try:
        _wait_for(port)
        env = {
            **{name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"},
            "HOME": str(home),
            "CLUSTERKIT_CLUSTER": "farm",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        yield Farm(folder=folder, env=env)
    finally:
        process.terminate()
        process.wait(60)
        for one in listeners.values():
            one.close()


def _saved(path: Path, program: str) -> str:
    path.write_text(program)
    return f"exec {sys.executable} {path}"


def _write_sshd(
    folder: Path, home: Path, port: int, names: Sequence[str], commands: Mapping[str, str]
) -> None:
    keys = []
    for name in names:
        forced = f'command="{commands[name]}" ' if name in commands else ""
        keys.append(forced + (home / f".ssh/{name}.pub").read_text())
    (folder / "authorized_keys").write_text("".join(keys))
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {home}/.ssh/host\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\n"
        "PermitRootLogin prohibit-password\nUsePAM no\nPidFile none\nMaxStartups 100\n"
        "PrintMotd no\nPrintLastLog no\n"
    )


def _write_client(home: Path, port: int, names: Sequence[str], others: Mapping[str, int]) -> None:
    key = " ".join((home / ".ssh/host.pub").read_text().split()[:2])
    blocks = [
        f"Host {name}\n  Port {others.get(name, port)}\n"
        + (f"  IdentityFile {home}/.ssh/{name}\n" if name not in others else "")
        for name in (*names, *others)
    ]
    common = (
        "Host *\n  HostName 127.0.0.1\n  User root\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {home}/.ssh/known_hosts\n  ConnectTimeout 20\n"
    )
    (home / ".ssh/config").write_text("".join(blocks) + common)
    (home / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{port} {key}\n")


def _listen(how: object) -> socket.socket:
    server = socket.create_server(("127.0.0.1", 0))

    def serve(peer: socket.socket) -> None:
        with suppress(OSError), peer:
            how(peer)  # type: ignore[operator]

    def accept() -> None:
        with suppress(OSError):
            while True:
                peer, _ = server.accept()
                threading.Thread(target=serve, args=(peer,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return server


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


def _wait_for(port: int) -> None:
    for _ in range(100):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError("sshd did not start")
