"""How nodes are asked, as far as that needs no network: names, keys, configuration, pieces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterKind, ClusterSpec, Host
from clusterkit.transport.base import Reply, check_names
from clusterkit.transport.fanout import visit_all
from clusterkit.transport.local import LocalTransport
from clusterkit.transport.probe import PreflightJob, Probe, Reach, ReachProblem
from clusterkit.transport.process import Ending, run_fed
from clusterkit.transport.script import Compound, compose
from clusterkit.transport.srun import SrunOptions, StepReader, step_argv
from clusterkit.transport.ssh.config import SshOptions, Target, load_config, resolve, resolve_jump
from clusterkit.transport.ssh.known_hosts import HostKeyRefused, KnownHosts

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
OTHER = "AAAAC3NzaC1lZDI1NTE5AAAAIB8eHRwbGhkYFxYVFBMSERAPDg0MCwoJCAcGBQQDAgEA"


def compound(**snippets: str) -> Compound:
    probes = [Probe(name=n, command=c, parse=str, timeout_s=5) for n, c in snippets.items()]
    return compose(probes, PreflightJob(hosts=()), token="cktoken")


class TestNames:
    def test_hosts_and_addresses_are_names(self) -> None:
        check_names(["n1", "gpu-03.example.org", "10.0.0.7", "fe80::1", "2001:db8::7", "a_b"])

    @pytest.mark.parametrize(
        "name",
        ["", "-w", ".x", "a b", "a;b", "$(a)", "a`b", "a|b", "a\n", "u@h", "h:22", "n[1-2]", "é",
         "fe80::1%eth0;x", "a/b", "a\\b", "x" * 300],
    )  # fmt: skip
    def test_everything_else_is_none(self, name: str) -> None:
        with pytest.raises(UserError, match="no host name"):
            check_names(["n1", name])

    def test_all_that_are_wrong_are_told_at_once(self) -> None:
        with pytest.raises(UserError) as caught:
            check_names(["n1", "a;b", "-c", "a;b"])
        assert [one.message for one in caught.value.problems] == [
            "no host name: 'a;b'",
            "no host name: '-c'",
        ]

    @given(st.text(min_size=1))
    def test_what_passes_means_nothing_to_a_shell(self, name: str) -> None:
        try:
            check_names([name])
        except UserError:
            return
        assert not set(name) & set(" \t\n;|&$`'\"\\<>(){}[]*?!#~%@/=,")
        assert not name.startswith("-")


class TestKnownHosts:
    @pytest.mark.parametrize(
        "line",
        [
            f"n1 ssh-ed25519 {KEY}",
            f"other,n1,10.0.0.1 ssh-ed25519 {KEY} with a comment",
            f"n? ssh-ed25519 {KEY}",
            f"N1 ssh-ed25519 {KEY}",
            f"n1 ssh-ed25519 {OTHER}\nn1 ssh-ed25519 {KEY}",
            f"# n1 x y\n\ngarbage\nn1 ssh-ed25519 {KEY}",
            f"{paramiko.HostKeys.hash_host('n1')} ssh-ed25519 {KEY}",
            f"|1|not-base64|x ssh-ed25519 {OTHER}\nn1 ssh-ed25519 {KEY}",
        ],
    )
    def test_a_known_key_is_accepted(self, tmp_path: Path, line: str) -> None:
        known(tmp_path, line).check(target(tmp_path), "ssh-ed25519", KEY)

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            (f"n1 ssh-ed25519 {OTHER}", ReachProblem.HOST_KEY_CHANGED),
            (f"@revoked * ssh-ed25519 {KEY}", ReachProblem.HOST_KEY_CHANGED),
            (
                f"n1 ssh-ed25519 {KEY}\n@revoked n1 ssh-ed25519 {KEY}",
                ReachProblem.HOST_KEY_CHANGED,
            ),
            (f"n2 ssh-ed25519 {KEY}", ReachProblem.HOST_KEY_UNKNOWN),
            (f"n*,!n1 ssh-ed25519 {KEY}", ReachProblem.HOST_KEY_UNKNOWN),
            (f"[n1]:2222 ssh-ed25519 {KEY}", ReachProblem.HOST_KEY_UNKNOWN),
            (f"@cert-authority * ssh-ed25519 {KEY}", ReachProblem.HOST_KEY_UNKNOWN),
            ("", ReachProblem.HOST_KEY_UNKNOWN),
        ],
    )
    def test_every_other_key_is_refused(
        self, tmp_path: Path, line: str, problem: ReachProblem
    ) -> None:
        with pytest.raises(HostKeyRefused) as caught:
            known(tmp_path, line).check(target(tmp_path), "ssh-ed25519", KEY)
        assert caught.value.problem is problem

    def test_a_port_of_its_own(self, tmp_path: Path) -> None:
        """`[host]:port` counts before the bare name, which counts where it is all there is."""
        both = known(tmp_path, f"[n1]:2222 ssh-ed25519 {KEY}\nn1 ssh-ed25519 {OTHER}")
        both.check(target(tmp_path, port=2222), "ssh-ed25519", KEY)
        with pytest.raises(HostKeyRefused):
            both.check(target(tmp_path, port=2222), "ssh-ed25519", OTHER)
        bare = known(tmp_path, f"n1 ssh-ed25519 {KEY}")
        bare.check(target(tmp_path, port=2222), "ssh-ed25519", KEY)

    def test_accept_new_adds_one_line(self, tmp_path: Path) -> None:
        path = tmp_path / "known_hosts"
        path.write_text(f"n2 ssh-ed25519 {OTHER}")  # its last line has no end
        store = KnownHosts(accept_new=True)
        store.check(target(tmp_path, port=2222), "ssh-ed25519", KEY)
        store.check(target(tmp_path, port=2222), "ssh-ed25519", KEY)
        assert path.read_text().splitlines() == [
            f"n2 ssh-ed25519 {OTHER}",
            f"[n1]:2222 ssh-ed25519 {KEY}",
        ]
        with pytest.raises(HostKeyRefused):
            store.check(target(tmp_path, port=2222), "ssh-ed25519", OTHER)

    def test_new_names_are_hashed_where_ssh_hashes_them(self, tmp_path: Path) -> None:
        KnownHosts(accept_new=True).check(target(tmp_path, hash_names=True), "ssh-ed25519", KEY)
        assert (tmp_path / "known_hosts").read_text().startswith("|1|")
        KnownHosts(accept_new=False).check(target(tmp_path), "ssh-ed25519", KEY)

    def test_a_line_is_added_whole_by_many_at_once(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        lines = [f"{number} {'x' * 500}" for number in range(50)]
        threads = [threading.Thread(target=files.append_line, args=(path, one)) for one in lines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(path.read_text().splitlines()) == sorted(lines)


class TestSshConfig:
    def test_own_options_beat_the_cluster_which_beats_ssh(self, tmp_path: Path) -> None:
        config = "Host n*\n  User ssh\n  Port 1\n  ConnectTimeout 3\n  HostName %h.example.org\n"
        cluster = ClusterSpec(
            name="rack", kind=ClusterKind.SSH, user="cluster",
            hosts=(Host(name="n1", user="own", port=7), Host(name="n2", slots=8)),
        )  # fmt: skip
        options = SshOptions.of(cluster)
        one, two = (resolve(name, options, parsed(tmp_path, config)) for name in ("n1", "n2"))
        assert (one.user, one.port, two.user, two.port) == ("own", 7, "cluster", 1)
        assert (one.address, one.connect_timeout_s) == ("n1.example.org", 3)
        assert one.at_port == "[n1.example.org]:7"

    def test_an_include_ends_with_its_file(self, tmp_path: Path) -> None:
        """A block that begins in it does not go on behind it."""
        (tmp_path / "more").write_text("User everyone\nHost other\n  Port 5\n")
        config = parsed(
            tmp_path, f"Host n1\n  Include {tmp_path}/mo*\n  Port 6\nHost *\n  Port 7\n"
        )
        assert resolve("n1", SshOptions(), config).port == 6
        assert resolve("n1", SshOptions(), config).user == "everyone"
        assert resolve("n2", SshOptions(), config).port == 7

    def test_an_include_of_itself_ends(self, tmp_path: Path) -> None:
        config = parsed(tmp_path, f"Include {tmp_path}/config\nHost *\n  Port 9\n")
        assert resolve("n1", SshOptions(), config).port == 9

    def test_a_jump_host_is_not_reached_through_itself(self, tmp_path: Path) -> None:
        config = parsed(tmp_path, "Host *\n  ProxyJump train@gate:2200\n")
        assert resolve("n1", SshOptions(), config).jumps == ("train@gate:2200",)
        assert resolve("gate", SshOptions(), config).jumps == ()
        gate = resolve_jump("train@gate:2200", SshOptions(), config, before=())
        assert (gate.name, gate.user, gate.port, gate.jumps) == ("gate", "train", 2200, ())

    def test_no_jump_and_other_jumps(self, tmp_path: Path) -> None:
        config = parsed(tmp_path, "Host n1\n  ProxyJump none\nHost *\n  ProxyCommand nc %h %p\n")
        assert resolve("n1", SshOptions(), config).jumps == ()
        assert resolve("n2", SshOptions(jump_host="a,b"), config).jumps == ("a", "b")
        assert resolve("n2", SshOptions(jump_host="a,b"), config).proxy_command is None
        with pytest.raises(UserError, match="no host name"):
            resolve_jump("u@-oX:1", SshOptions(), config, before=())

    def test_a_file_that_makes_no_sense(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="cannot read the ssh configuration"):
            parsed(tmp_path, "Match nonsense\n")


class TestSrun:
    def test_the_step_inside_an_allocation(self) -> None:
        options = SrunOptions(job_id="7", partition="gpu", in_job=("--het-group=1",))
        argv = step_argv(["n1", "n2"], options, limit_s=60)
        wanted = {"--overlap", "--jobid=7", "--nodelist=n[1-2]", "--ntasks=2", "--het-group=1"}
        assert wanted <= set(argv)
        assert not any(word.startswith(("--partition", "--immediate")) for word in argv)

    def test_the_step_with_an_allocation_of_its_own(self) -> None:
        options = SrunOptions(partition="gpu", account="a", extra=("--gpus-per-node=8",))
        argv = step_argv(["n1"], options, limit_s=61)
        wanted = {"--partition=gpu", "--account=a", "--immediate=60", "--time=3"}
        assert wanted | {"--gpus-per-node=8"} <= set(argv)
        assert argv[-1] == "sh"

    def test_the_cluster_and_the_allocation_are_known(self) -> None:
        cluster = ClusterSpec(
            name="a", kind=ClusterKind.SLURM, qos="q", srun_args=("--x=1", "--auto-resume=1")
        )
        options = SrunOptions.of(cluster, {"SLURM_JOB_ID": "9"})
        assert (options.job_id, options.qos, options.extra) == ("9", "q", ("--x=1",))

    @given(st.data())
    def test_pieces_of_lines_come_together(self, data: st.DataObject) -> None:
        """Whatever order the pieces of two tasks come in, and wherever a read ends."""
        text = data.draw(st.text(alphabet="abé ", min_size=1, max_size=60))
        queues = [pieces(f"cktoken {task} long o {text}{task}", task) for task in (0, 1)]
        queues = [
            [f"{task}: cktoken {task} - @ 100.5 n{task}\n".encode(), *queue]
            for task, queue in enumerate(queues)
        ]
        mixed = b""
        while any(queues):
            mixed += data.draw(st.sampled_from([queue for queue in queues if queue])).pop(0)
        cut = data.draw(st.integers(0, len(mixed)))
        reader = StepReader(compound(long="true"), tasks=2)
        reader.feed(1.0, mixed[:cut])
        reader.feed(2.0, mixed[cut:])
        told = reader.by_node(("n0", "n1"), "")
        assert set(told) == {"n0", "n1"}
        for task in (0, 1):
            reply = told[f"n{task}"].reply(f"n{task}", 1.0)
            assert reply.outputs["long"].stdout == f"{text}{task}\n"
            assert reply.reach.clock_skew_s in {99.5, 98.5}

    @given(st.binary(max_size=300))
    def test_noise_is_no_answer(self, noise: bytes) -> None:
        reader = StepReader(compound(x="true"), tasks=1)
        reader.feed(1.0, noise)
        assert reader.by_node(("n0",), "") == {}


class TestLocal:
    def test_all_names_get_the_answer_of_this_machine(self) -> None:
        heard: list[str] = []
        replies = LocalTransport().ask(
            ["node-0", "node-1"],
            compound(x="echo $$"),
            on_reply=lambda reply: heard.append(reply.node),
        )
        assert heard == [reply.node for reply in replies] == ["node-0", "node-1"]
        assert replies[0].reach.problem is None
        assert replies[0].reach.complete
        assert replies[0].outputs["x"].stdout == replies[1].outputs["x"].stdout != ""

    def test_what_is_there_when_time_is_up(self, tmp_path: Path) -> None:
        # Both pipes stay open in a session that `timeout` does not know.
        stays = f"setsid sh -c 'echo $$ >{tmp_path}/pid; exec sleep 600' & echo begun"
        script = compound(quick="echo here", slow=stays)
        (reply,) = LocalTransport(timeout_s=15).ask(["me"], script, on_reply=lambda _: None)
        with suppress(ProcessLookupError):  # it was not waited for, but may have been ended
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        assert reply.outputs["quick"].stdout == "here\n"
        assert reply.reach.problem is None
        assert not reply.reach.complete


@dataclass
class Pretended:
    """A visit without a network, that lasts as long as it is told."""

    name: str
    lasts_s: float = 0.0
    deadline: float | None = None
    heeds: bool = True
    ended: threading.Event = field(default_factory=threading.Event)
    was_cut: bool = False

    def run(self) -> Reply:
        if self.lasts_s < 0:
            raise ZeroDivisionError(self.name)
        self.ended.wait(self.lasts_s)
        return Reply(node=self.name, reach=Reach(detail="back"))

    def cut(self) -> None:
        self.was_cut = True
        if self.heeds:
            self.ended.set()

    def late(self) -> Reply:
        return Reply(node=self.name, reach=Reach(detail="left behind"))


class TestFanOut:
    def test_late_visits_are_cut_and_deaf_ones_left_behind(self) -> None:
        visits = [Pretended("slow", 1e6), Pretended("quick"), Pretended("deaf", 1e6, heeds=False)]
        heard: list[tuple[str, int]] = []

        def hear(reply: Reply) -> None:
            heard.append((reply.node, threading.get_ident()))
            for late in visits[::2]:
                late.deadline = late.deadline or time.monotonic()

        replies = visit_all(visits, threads=8, on_reply=hear)
        assert [one.was_cut for one in visits] == [True, False, True]
        assert [(one.node, one.reach.detail) for one in replies] == [
            ("slow", "back"),
            ("quick", "back"),
            ("deaf", "left behind"),
        ]
        assert [name for name, _ in heard] == ["quick", "slow", "deaf"]
        assert {thread for _, thread in heard} == {threading.get_ident()}
        visits[2].ended.set()

    def test_late_visits_may_say_what_there_is_also_where_that_is_noticed_late(self) -> None:
        """As on a machine that stood still beyond their time, and beyond their grace."""
        past = time.monotonic() - 60
        visits = [Pretended(name, 30, deadline=past) for name in ("one", "two", "three")]
        replies = visit_all(visits, threads=3, on_reply=lambda _: None)
        assert [reply.reach.detail for reply in replies] == ["back"] * 3

    def test_a_mistake_of_ours_is_not_swallowed(self) -> None:
        visits = [Pretended("slow", 30), Pretended("broken", -1)]
        with pytest.raises(ZeroDivisionError):
            visit_all(visits, threads=8, on_reply=lambda _: None)
        assert visits[0].was_cut

    def test_more_visits_than_threads(self) -> None:
        visits = [Pretended(f"n{index}") for index in range(40)]
        replies = visit_all(visits, threads=3, on_reply=lambda _: None)
        assert [reply.node for reply in replies] == [visit.name for visit in visits]
        assert visit_all([], threads=3, on_reply=lambda _: None) == ()


def known(folder: Path, text: str) -> KnownHosts:
    (folder / "known_hosts").write_text(text + "\n")
    return KnownHosts(accept_new=False)


def target(folder: Path, *, port: int = 22, hash_names: bool = False) -> Target:
    path = (folder / "known_hosts",)
    return Target(
        name="n1", address="n1", user=None, port=port, connect_timeout_s=1, key_name="n1",
        user_known_hosts=path, known_hosts=path, hash_names=hash_names, jumps=(),
        proxy_command=None,
    )  # fmt: skip


def parsed(folder: Path, text: str) -> paramiko.SSHConfig:
    (folder / "config").write_text(text)
    return load_config(SshOptions(config_files=(str(folder / "config"),)))


def pieces(line: str, task: int) -> list[bytes]:
    """Cut a line as srun does, but sooner, and label the pieces; the token stays whole."""
    data = line.encode()
    cuts = [data[:30], *(data[at : at + 7] for at in range(30, len(data), 7))]
    return [f"{task}: ".encode() + piece + b"\n" for piece in cuts]


_CLIENT = """
import signal, sys
from clusterkit.transport.process import Ending, run_fed
ending = Ending(orphaned=signal.SIGINT)
run_fed(sys.argv[1:], "", on_output=lambda *_: True, timeout_s=60, ending=ending)
"""
_HELD = 'trap "touch $1; exit" INT; touch $0; while :; do sleep 0.1; done'


def test_a_program_is_told_when_its_client_is_killed(tmp_path: Path) -> None:
    """No finally of Python runs then: it is the kernel that tells."""
    began, told = tmp_path / "began", tmp_path / "told"
    argv = [sys.executable, "-c", _CLIENT, "bash", "-c", _HELD, str(began), str(told)]
    with subprocess.Popen(argv) as client:
        _await(began)
        client.kill()
    _await(told)


_ENDED = """
import signal, sys
from pathlib import Path
from clusterkit.cli.frame.main import ended_as_by_ctrl_c
from clusterkit.transport.process import Ending, run_fed
began, *argv = sys.argv[1:]
def note(*_): return Path(began).touch() is None
with ended_as_by_ctrl_c():
    signals = (signal.SIGINT, signal.SIGTERM)
    run_fed(argv, "", on_output=note, timeout_s=60, ending=Ending(signals=signals))
"""
_SLOW = 'trap "touch $1" INT; trap "touch $0; exit" TERM; echo; while :; do sleep 0.1; done'


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_keep_a_client_from_ending_its_program(
    tmp_path: Path, second: signal.Signals
) -> None:
    """A lost session sends SIGHUP by the kernel and by its shell, and systemd SIGTERM too."""
    began, ended, told = tmp_path / "began", tmp_path / "ended", tmp_path / "told"
    argv = [sys.executable, "-c", _ENDED, str(began), "bash", "-c", _SLOW, str(ended), str(told)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE) as client:
        _await(began)
        client.send_signal(signal.SIGHUP)
        _await(told)
        client.send_signal(second)
        _await(ended)
        client.wait()


def _await(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name}"
        time.sleep(0.05)


def test_a_program_that_is_tied_and_missing_is_missing() -> None:
    ending = Ending(orphaned=signal.SIGINT)
    with pytest.raises(FileNotFoundError):
        run_fed(["no-such"], "", on_output=lambda *_: True, timeout_s=1, ending=ending)


def test_a_program_that_is_tied_ignores_no_signal() -> None:
    """Python ignores SIGPIPE, and what is ignored stays so over execve(2)."""
    ignored = []
    for orphaned in (None, signal.SIGINT):
        heard: list[bytes] = []
        run_fed(
            ["grep", "SigIgn", "/proc/self/status"], "", timeout_s=60,
            ending=Ending(orphaned=orphaned),
            on_output=lambda _, data, heard=heard: not heard.append(data),
        )  # fmt: skip
        ignored.append(b"".join(heard))
    assert ignored[0] == ignored[1] != b""
