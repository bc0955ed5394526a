"""Connections that stay open between questions: shared, and opened again once they are lost."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from clusterkit.transport.probe import PreflightJob, Probe, ReachProblem
from clusterkit.transport.script import Compound, compose
from clusterkit.transport.ssh import transport as ssh
from clusterkit.transport.ssh.client import JumpFailed, Line, SshClient
from clusterkit.transport.ssh.config import SshOptions
from clusterkit.transport.ssh.transport import SshTransport

HERE = "127.0.0.1"


class Door(paramiko.ServerInterface):
    """Lets everybody in, to a shell and to what lies behind."""

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return int(paramiko.AUTH_SUCCESSFUL)

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return int(paramiko.OPEN_SUCCEEDED)

    def check_channel_direct_tcpip_request(self, *_: object) -> int:
        return int(paramiko.OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self._serve, args=(channel, command), daemon=True).start()
        return True

    def _serve(self, channel: paramiko.Channel, command: bytes) -> None:
        script = channel.makefile("rb").read()
        done = subprocess.run(["sh", "-c", command], input=script, capture_output=True, check=False)
        channel.sendall(done.stdout)


class Gate:
    """An SSH server of this process, which can be taken down and put up again."""

    def __init__(self) -> None:
        self.key = paramiko.ECDSAKey.generate()
        self.port = 0
        self.calls = 0
        self._open: list[paramiko.Transport] = []
        self._listener: socket.socket | None = None

    def up(self) -> None:
        """Listen, at the port of the last time."""
        self._listener = socket.create_server((HERE, self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def down(self) -> None:
        """Refuse who comes, and hang up on who is there."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        while self._open:
            self._open.pop().close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            self.calls += 1
            transport = paramiko.Transport(sock)
            transport.add_server_key(self.key)
            self._open.append(transport)
            transport.start_server(event=threading.Event(), server=Door())


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    gate.up()
    yield gate
    gate.down()


@pytest.fixture
def options(gate: Gate, tmp_path: Path) -> SshOptions:
    """Reach this machine at the gate's port, and others through it."""
    paramiko.ECDSAKey.generate().write_private_key_file(str(tmp_path / "key"))
    config = tmp_path / "config"
    config.write_text(
        f"Host *\n  User me\n  Port {gate.port}\n  IdentityFile {tmp_path}/key\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {tmp_path}/known_hosts\n"
    )
    return SshOptions(host_keys="accept-new", connect_timeout_s=60, config_files=(str(config),))


def compound() -> Compound:
    probe = Probe(name="one", command="echo here", parse=str, timeout_s=60)
    return compose([probe], PreflightJob(hosts=()), token="cktoken")


def lost(transport: paramiko.Transport) -> None:
    """Wait until this side knows that the connection is gone."""
    deadline = time.monotonic() + 60
    while transport.is_active() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not transport.is_active()


def test_a_jump_host_that_was_lost_is_opened_again(gate: Gate, options: SshOptions) -> None:
    behind = SshClient(replace(options, jump_host=HERE))
    target = behind.resolve("n1")
    first = behind.dial(target, Line())
    behind.dial(target, Line())
    assert gate.calls == 1
    gate.down()
    lost(first.get_transport())
    question = Line()
    for _ in range(2):
        with pytest.raises(JumpFailed) as failed:
            behind.dial(target, Line(since=question.since))
        assert isinstance(failed.value.__cause__, ConnectionRefusedError)
    gate.up()
    with pytest.raises(JumpFailed):  # of the same question: one attempt is for all its nodes
        behind.dial(target, Line(since=question.since))
    again = behind.dial(target, Line())
    assert again.get_transport().is_active()
    assert gate.calls == 2
    behind.close()
    lost(again.get_transport())


def test_questions_at_the_same_time_share_what_is_kept(
    options: SshOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Counted(SshClient):
        def __init__(self, options: SshOptions) -> None:
            made.append(self)
            super().__init__(options)

    monkeypatch.setattr(ssh, "SshClient", Counted)
    transport = SshTransport(options, keep=True)

    def ask_again(_: object) -> None:
        transport.ask([HERE], compound(), on_reply=lambda _: None)

    (reply,) = transport.ask([HERE], compound(), on_reply=ask_again)
    assert reply.outputs["one"].stdout == "here\n"
    assert len(made) == 1
    transport.close()


def test_a_kept_connection_that_was_lost_is_closed(gate: Gate, options: SshOptions) -> None:
    transport = SshTransport(options, keep=True)
    for calls in (1, 1):
        (reply,) = transport.ask([HERE], compound(), on_reply=lambda _: None)
        assert (reply.reach.problem, gate.calls) == (None, calls)
    kept = transport._kept[HERE]
    gate.down()
    lost(kept.connection.transport)
    (reply,) = transport.ask([HERE], compound(), on_reply=lambda _: None)
    assert reply.reach.problem is ReachProblem.REFUSED
    assert kept.line.sockets == []
    gate.up()
    (reply,) = transport.ask([HERE], compound(), on_reply=lambda _: None)
    assert (reply.reach.problem, gate.calls) == (None, 2)
    transport.close()
