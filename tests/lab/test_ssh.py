"""Nodes asked by ssh: every way in which that can fail, for real."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.lab_ask import another_sshd, ask, listeners, reach, said, stopped
from tests.helpers.lab_jobs import is_soon
from tests.helpers.needs import require
from tests.lab import Lab
from tests.lab.fanout import fanned_out

pytestmark = pytest.mark.lab

PORT = 2022
QUICK_S = 2
"""After which those are given up that never answer."""
MARGIN_S = 15
LATE_S = 20
"""As of the practice cluster's own configuration."""


def test_every_node_answers(lab: Lab) -> None:
    done = ask(lab, ["n3", "n1", "n2"], probes={"name": "uname -n", "two": "echo a; echo b >&2"})
    assert list(done["replies"]) == ["n3", "n1", "n2"]
    for node in lab.nodes:
        outputs = done["replies"][node]["outputs"]
        assert said(done, node) == f"{node}\n"
        assert (outputs["two"]["stdout"], outputs["two"]["stderr"]) == ("a\n", "b\n")
        found = reach(done, node)
        assert found["problem"] is None
        assert (found["via"], found["complete"]) == ("ssh", True)
        assert 0 < found["connect_s"] < done["seconds"]
        assert 0 < found["latency_s"] < done["seconds"]
        assert abs(found["clock_skew_s"]) < done["seconds"]  # the clock of one machine


def test_each_failure_is_told_apart_and_holds_nobody_up(lab: Lab) -> None:
    """A closed port, a hung sshd, an address that nobody has, a name that nobody knows."""
    hosts = {"10.77.0.3": {"port": 2999}}
    nodes = ["n1", "10.77.0.3", "n2", "10.77.9.9", "n99"]
    with stopped(listeners(lab, "n2", "sshd_config_n2")):
        done = ask(lab, nodes, hosts=hosts, config_files=_quick(lab))
    problems = {node: reach(done, node)["problem"] for node in nodes}
    assert problems.pop("10.77.9.9") in {"unreachable", "timeout"}  # as soon as ARP gives up
    assert problems == {"n1": None, "10.77.0.3": "refused", "n2": "timeout", "n99": "name"}
    assert "2 s" in reach(done, "n2")["detail"]
    assert done["heard"][0] in {"n1", "10.77.0.3", "n99"}
    assert is_soon(lab, done["seconds"] - QUICK_S)


def test_a_black_hole_ends_in_time(lab: Lab) -> None:
    """Packets that are dropped, not refused: only the time-out tells."""
    rule = ["ip", "neigh", "replace", "10.77.8.8", "lladdr", "02:00:00:00:00:08", "dev", "eth0"]
    lab.run("head", rule, check=True)
    done = ask(lab, ["10.77.8.8", "n1"], config_files=_quick(lab))
    assert reach(done, "10.77.8.8")["problem"] == "timeout"
    assert reach(done, "n1")["problem"] is None
    assert is_soon(lab, done["seconds"] - QUICK_S)


def test_an_unknown_key_is_refused_and_accept_new_learns_it(lab: Lab, tmp_path: Path) -> None:
    known = tmp_path / "ssh" / "known_hosts"
    files = _config(lab, tmp_path, f"UserKnownHostsFile {known}")
    done = ask(lab, ["n1"], config_files=files)
    assert reach(done, "n1")["problem"] == "host-key-unknown"
    assert "SHA256:" in reach(done, "n1")["detail"]
    assert not known.exists()

    done = ask(lab, ["n1", "n2"], config_files=files, host_keys="accept-new")
    assert [reach(done, node)["problem"] for node in ("n1", "n2")] == [None, None]
    assert known.stat().st_mode & 0o777 == 0o600
    assert {line.split()[0] for line in known.read_text().splitlines()} == {"n1", "n2"}
    done = ask(lab, ["n1"], config_files=files)
    assert reach(done, "n1")["problem"] is None
    # OpenSSH believes what we wrote.
    argv = ["ssh", "-F", files[0], "-o", "StrictHostKeyChecking=yes", "n2", "uname -n"]
    assert lab.run("head", argv).stdout == "n2\n"


@pytest.mark.parametrize("host_keys", ["known", "accept-new"])
def test_a_changed_key_is_refused_always(lab: Lab, tmp_path: Path, host_keys: str) -> None:
    known = tmp_path / "known_hosts"
    other = " ".join((lab.layout.ssh / "host_key_n2.pub").read_text().split()[:2])
    known.write_text(f"n1 {other}\n")
    files = _config(lab, tmp_path, f"UserKnownHostsFile {known}")
    done = ask(lab, ["n1"], config_files=files, host_keys=host_keys)
    assert reach(done, "n1")["problem"] == "host-key-changed"
    assert f"{known}:1" in reach(done, "n1")["detail"]
    assert known.read_text() == f"n1 {other}\n"


def test_a_refused_log_in_says_what_was_tried(lab: Lab, tmp_path: Path) -> None:
    lab.run("head", ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "new")])
    lab.run("head", ["ssh-keygen", "-q", "-t", "rsa", "-N", "word", "-f", str(tmp_path / "locked")])
    nothing = _config(lab, tmp_path, "IdentityFile /nowhere")
    done = ask(
        lab, ["n1"], config_files=nothing, identity_file=str(tmp_path / "new"), user="daemon"
    )
    assert reach(done, "n1")["problem"] == "auth"
    assert reach(done, "n1")["detail"] == "user daemon: the key was refused"
    done = ask(lab, ["n1"], config_files=nothing, identity_file=str(tmp_path / "locked"))
    assert reach(done, "n1")["problem"] == "auth"
    assert "has a passphrase: ssh-add it" in reach(done, "n1")["detail"]
    assert is_soon(lab, done["seconds"])


def test_the_agent_is_asked(lab: Lab, tmp_path: Path) -> None:
    """By many threads at once, over its one socket."""
    key = lab.layout.ssh / "id_ed25519"
    files = _config(lab, tmp_path, "IdentityFile /nowhere", "IdentitiesOnly no")
    with_agent = ["ssh-agent", "sh", "-c", f'ssh-add -q {key}; exec "$@"', "sh"]
    done = ask(lab, lab.nodes, config_files=files, before=with_agent)
    assert [reach(done, node)["problem"] for node in lab.nodes] == [None] * 3


def test_a_server_that_hangs_after_the_greeting(lab: Lab, tmp_path: Path) -> None:
    """The look-up of keys never ends: authentication hangs."""
    slow = ("AuthorizedKeysFile none", "AuthorizedKeysCommand /bin/sleep 300",
            "AuthorizedKeysCommandUser root")  # fmt: skip
    with another_sshd(lab, "n2", PORT, *slow):
        # Time enough to come as far as that.
        files = _config(lab, tmp_path, "ConnectTimeout 15")
        done = ask(lab, ["n1", "n2"], config_files=files, hosts={"n2": {"port": PORT}})
    assert reach(done, "n2")["problem"] == "timeout"
    assert "handshake" in reach(done, "n2")["detail"]
    assert reach(done, "n1")["problem"] is None
    assert is_soon(lab, done["seconds"] - 15)


def test_jump_hosts(lab: Lab) -> None:
    """One connection to the jump host, however many nodes lie behind it."""
    done = ask(lab, ["n2", "n3", "n1"], jump_host="root@n1:22")
    assert [said(done, node) for node in ("n1", "n2", "n3")] == ["n1\n", "n2\n", "n3\n"]
    assert reach(done, "n2")["latency_s"] > 0
    done = ask(lab, ["n3"], jump_host="n1,n2")
    assert said(done, "n3") == "n3\n"
    done = ask(lab, ["n2", "10.77.0.3"], jump_host="n1", hosts={"10.77.0.3": {"port": 2999}})
    assert reach(done, "10.77.0.3")["problem"] == "unreachable"
    assert reach(done, "10.77.0.3")["detail"].startswith("jump host n1: ")
    assert reach(done, "n2")["problem"] is None


def test_a_jump_host_that_is_not_there(lab: Lab, tmp_path: Path) -> None:
    files = _config(lab, tmp_path, f"ConnectTimeout {QUICK_S}")
    with stopped(listeners(lab, "n1", "sshd_config_n1")):
        done = ask(lab, ["n2", "n3"], config_files=files, jump_host="n1")
    for node in ("n2", "n3"):
        assert reach(done, node)["problem"] == "timeout"
        assert reach(done, node)["detail"].startswith("jump host n1: ")
    assert is_soon(lab, done["seconds"] - QUICK_S)
    done = ask(lab, ["n2"], jump_host="n77")
    assert reach(done, "n2")["problem"] == "name"


def test_proxy_command_and_config(lab: Lab, tmp_path: Path) -> None:
    """Include, HostName, ProxyJump and ProxyCommand of ssh's own configuration."""
    (tmp_path / "more.conf").write_text("Host other\n    HostName 10.77.0.2\n")
    config = tmp_path / "ssh_config"
    config.write_text(
        f"Include {tmp_path}/*.conf\n"
        "Host far\n    HostName n3\n    ProxyJump n1\n"
        "Host piped\n    HostName n1\n    ProxyCommand ssh -F %(c)s -W %%h:%%p n2\n"
        % {"c": lab.layout.ssh / "ssh_config"}
        + (lab.layout.ssh / "ssh_config").read_text().replace("Host ", "Host other far piped ", 1)
    )
    done = ask(lab, ["other", "far", "piped"], config_files=[str(config)])
    assert [said(done, node) for node in ("other", "far", "piped")] == ["n2\n", "n3\n", "n1\n"]


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "tcsh", "fish"])
def test_login_shells(lab: Lab, shell: str) -> None:
    require(shell)
    with another_sshd(lab, "n2", PORT, f'ForceCommand {shell} -c "$SSH_ORIGINAL_COMMAND"'):
        done = ask(
            lab, ["n2"], hosts={"n2": {"port": PORT}}, probes={"name": "echo $0 'é' $((1+1))"}
        )
    assert said(done, "n2") == "sh é 2\n"


def test_banners_and_noisy_profiles(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "banner").write_text("AUTHORISED USE ONLY\n" * 50)
    noise = "echo welcome; printf 'no end of line'; echo oops >&2; eval \"$SSH_ORIGINAL_COMMAND\""
    with another_sshd(lab, "n2", PORT, f"Banner {tmp_path / 'banner'}", f"ForceCommand {noise}"):
        done = ask(lab, ["n2"], hosts={"n2": {"port": PORT}})
    assert said(done, "n2") == "n2\n"
    assert reach(done, "n2")["clock_skew_s"] is not None


def test_a_shell_that_runs_nothing(lab: Lab) -> None:
    words = "This account is currently not available."
    with another_sshd(lab, "n2", PORT, f"ForceCommand echo '{words}'; exit 1"):
        done = ask(lab, ["n2"], hosts={"n2": {"port": PORT}})
    assert reach(done, "n2")["problem"] == "shell"
    assert reach(done, "n2")["detail"] == words


def test_a_shell_that_never_answers(lab: Lab) -> None:
    with another_sshd(lab, "n2", PORT, "ForceCommand sleep 300"):
        done = ask(lab, ["n2"], hosts={"n2": {"port": PORT}}, probes={"x": ["true", 1]}, margin_s=1)
    assert reach(done, "n2")["problem"] == "timeout"
    assert is_soon(lab, done["seconds"] - done["timeout_s"])


def test_an_interrupt_ends_it_at_once(lab: Lab) -> None:
    """No thread that waits for a node keeps the process."""
    options = {"config_files": [str(lab.layout.ssh / "ssh_config")]}
    wanted = {
        "via": "ssh",
        "nodes": ["n1"],
        "probes": {"x": ["sleep 400", 500]},
        "options": options,
    }
    argv = [sys.executable, "-m", "tests.helpers.ask_client", json.dumps(wanted)]
    client = lab.popen("head", argv, env={"PYTHONPATH": "."})
    while not lab.processes("n1", "(^|/)sleep 400"):
        assert client.poll() is None, client.communicate()
        time.sleep(0.1)
    for process in lab.processes("head", "^[^ ]*python[^ ]* -m tests.helpers.ask_client"):
        os.kill(process.pid, signal.SIGINT)
    began = time.monotonic()
    _, errors = client.communicate(timeout=120)
    assert "KeyboardInterrupt" in errors
    assert is_soon(lab, time.monotonic() - began)


def test_what_there_is_of_a_node_that_hangs(lab: Lab) -> None:
    """The frames that came are used, and the rest is known to be missing."""
    hang = "setsid sleep 45 & uname -n"  # holds the pipe open, out of reach of `timeout`
    probes = {"name": "uname -n", "hang": [hang, 1]}
    done = ask(lab, ["n1", "n2"], probes=probes, margin_s=MARGIN_S)
    assert done["timeout_s"] + MARGIN_S < 45
    for node in ("n1", "n2"):
        assert reach(done, node)["problem"] is None
        assert not reach(done, node)["complete"]
        assert said(done, node) == f"{node}\n"
        late = done["replies"][node]["outputs"].get("hang")
        assert late is None or late["exit_code"] is None


@pytest.mark.parametrize("name", ["n1;reboot", "$(id)", "-oProxyCommand=id"])
def test_names_with_shell_characters_are_refused(lab: Lab, name: str) -> None:
    done = ask(lab, ["n1", name])
    assert "no host name" in done["error"]


def test_three_hundred_hosts_of_which_twenty_are_black_holes(lab: Lab) -> None:
    """The answer comes within the time-out plus a few seconds, with all the others judged."""
    with fanned_out(lab, 280) as fan:
        holes = [f"10.77.7.{index}" for index in range(1, 21)]
        neighbours = "".join(
            f"neigh replace {one} lladdr 02:00:00:00:00:07 dev eth0\n" for one in holes
        )
        lab.run("head", ["ip", "-batch", "-"], input=neighbours, check=True)
        nodes = [*holes, *fan.addresses]
        done = ask(lab, nodes, config_files=[str(fan.ssh_config)])
    problems = [reach(done, node)["problem"] for node in nodes]
    assert problems == ["timeout"] * 20 + [None] * 280, reach(done, nodes[22])
    assert is_soon(lab, done["seconds"] - LATE_S)  # on a quiet machine, 0.1 s later
    first_hole = min(done["heard"].index(node) for node in holes)
    assert first_hole > 20, "black holes kept the others waiting"


def _config(lab: Lab, folder: Path, *lines: str) -> list[str]:
    """Write a configuration whose lines win over those of the lab."""
    path = folder / "config"
    text = (lab.layout.ssh / "ssh_config").read_text()
    ours = {line.split()[0] for line in lines}
    kept = [line for line in text.splitlines() if line.split()[0] not in ours]
    path.write_text("\n".join([kept[0], *(f"    {line}" for line in lines), *kept[1:]]) + "\n")
    return [str(path)]


def _quick(lab: Lab) -> list[str]:
    """Write a configuration that soon gives up on those that never answer, and on nobody else."""
    path = lab.shared / "quick"
    quick = f"Host n2 10.77.8.8 10.77.9.9\n    ConnectTimeout {QUICK_S}\n"
    path.write_text(quick + (lab.layout.ssh / "ssh_config").read_text())
    return [str(path)]
