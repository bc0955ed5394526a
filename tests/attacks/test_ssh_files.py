"""What ssh reads of its user, written by somebody else: commands to run, and keys to believe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterkit.core.errors import UserError
from clusterkit.transport.ssh.config import SshOptions, load_config, resolve
from clusterkit.transport.ssh.known_hosts import HostKeyRefused, KnownHosts

STRANGER = 54321
KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIGRfYQ0X1Yd0m0mZk2rI0dN8wJ0kQyq3p6q5x0u0Jm2v"

pytestmark = pytest.mark.needs("root")


@pytest.mark.parametrize("planted", ["config", "included"])
@pytest.mark.parametrize(("owner", "mode"), [(STRANGER, 0o600), (0, 0o666)])
def test_a_proxy_command_that_others_can_write_is_not_run(
    tmp_path: Path, planted: str, owner: int, mode: int
) -> None:
    config, included = tmp_path / "config", tmp_path / "included"
    config.write_text(f"Include {included}\n")
    included.write_text("Host *\n  ProxyCommand touch /ran\n")
    options = SshOptions(config_files=(str(config),))
    assert resolve("n1", options, load_config(options)).proxy_command == "touch /ran"
    path = tmp_path / planted
    os.chown(path, owner, owner)
    path.chmod(mode)
    with pytest.raises(UserError, match="will not run the commands that it names"):
        load_config(options)


def test_a_host_key_that_others_can_write_is_not_believed(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"n1 ssh-ed25519 {KEY}\n")
    options = SshOptions(config_files=(str(tmp_path / "config"),))
    (tmp_path / "config").write_text(
        f"UserKnownHostsFile {known}\nGlobalKnownHostsFile /dev/null\n"
    )
    target = resolve("n1", options, load_config(options))
    KnownHosts(accept_new=False).check(target, "ssh-ed25519", KEY)
    known.chmod(0o666)
    for accept_new in (False, True):
        with pytest.raises(HostKeyRefused, match=r"can be written by everybody"):
            KnownHosts(accept_new=accept_new).check(target, "ssh-ed25519", KEY)
