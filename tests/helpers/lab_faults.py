"""Faults of single hosts of the practice cluster, each gone again when its block ends."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.helpers.lab_ask import ROOT, listeners, stopped
from tests.lab import Lab, sshd
from tests.lab.layout import HEAD, write_changed

DOUBLES = ROOT / "tests" / "doubles"
_GPU_FOLDER = "/usr/local/sbin"
"""On everybody's PATH, and empty on this machine."""


@contextmanager
def mounted(lab: Lab, host: str, *words: str) -> Iterator[None]:
    """Mount something on one host alone, which has a mount namespace of its own."""
    lab.run(host, ["mount", *words], check=True)
    try:
        yield
    finally:
        lab.run(host, ["umount", "--lazy", words[-1]], cwd="/", check=True)


@contextmanager
def slow_link(lab: Lab, host: str, rate: str) -> Iterator[None]:
    """Let a host send no faster than so (`20mbit`)."""
    qdisc = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate]
    lab.run(host, [*qdisc, "burst", "64kb", "latency", "50ms"], check=True)
    try:
        yield
    finally:
        lab.run(host, ["tc", "qdisc", "delete", "dev", "eth0", "root"], check=True)


@contextmanager
def no_logins_between_nodes(lab: Lab) -> Iterator[None]:
    """Let hosts in from the head alone, as where nodes share no keys."""
    keys = lab.layout.ssh / "authorized_keys"
    text = keys.read_text()
    keys.write_text(f'from="{lab.layout.address(HEAD)}" {text}')
    try:
        yield
    finally:
        keys.write_text(text)


@contextmanager
def hosts_file(lab: Lab, host: str, old: str, new: str, folder: Path) -> Iterator[None]:
    """Give one host another /etc/hosts."""
    text = lab.run(host, ["cat", "/etc/hosts"], check=True).stdout
    assert old in text
    wrong = folder / "hosts"
    wrong.write_text(text.replace(old, new))
    with mounted(lab, host, "--bind", str(wrong), "/etc/hosts"):
        yield


@contextmanager
def gpus(lab: Lab, folder: Path, **kinds: str) -> Iterator[Path]:
    """Give hosts the double of nvidia-smi, and of the kernel log: `gpus(lab, tmp, n2="sick8")`.

    It answers from a copy in the folder that is yielded, under the host's name.
    """
    log = folder / "dmesg"
    log.write_text(f"#!/bin/sh\nexec {_GPU_FOLDER}/dmesg\n")
    log.chmod(0o755)
    with ExitStack() as stack:
        for host, kind in kinds.items():
            here = folder / host
            shutil.copytree(DOUBLES / "gpus" / kind, here / "gpus")
            for name in ("nvidia-smi", "dmesg"):
                shutil.copy(DOUBLES / name, here / name)
            stack.enter_context(mounted(lab, host, "--bind", str(here), _GPU_FOLDER))
            stack.enter_context(mounted(lab, host, "--bind", str(log), "/usr/bin/dmesg"))
        yield folder


@contextmanager
def rdma(lab: Lab, host: str, devices: Path) -> Iterator[None]:
    """Give one host the RDMA devices whose files are below a folder."""
    script = """
        mkdir -p "$1/real" && mount --rbind /sys/class "$1/real" && mount -t tmpfs own /sys/class
        for class in "$1"/real/*; do
            mkdir "/sys/class/${class##*/}" && mount --bind "$class" "/sys/class/${class##*/}"
        done
        mkdir -p /sys/class/infiniband && mount --bind "$2" /sys/class/infiniband
    """
    place = lab.layout.host_dir(host) / "classes"
    try:
        lab.run(host, ["sh", "-ec", script, "sh", str(place), str(devices)], check=True)
        yield
    finally:
        for mount in ("/sys/class", str(place / "real")):
            lab.run(host, ["umount", "--recursive", "--lazy", mount], cwd="/", check=True)


@contextmanager
def programs(lab: Lab, folder: Path, *hosts: str) -> Iterator[None]:
    """Give hosts the programs of a folder, beside their own."""
    with ExitStack() as stack:
        for host in hosts:
            stack.enter_context(mounted(lab, host, "--bind", str(folder), _GPU_FOLDER))
        yield


@contextmanager
def metadata_service(lab: Lab, host: str, folder: Path) -> Iterator[None]:
    """Have one host see the files below a folder at the address of a cloud's metadata service."""
    address = "169.254.169.254"
    lab.run(host, ["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    argv = [sys.executable, "-m", "http.server", "80", "--bind", address, "--directory", folder]
    server = lab.popen(host, [str(word) for word in argv])
    try:
        yield
    finally:
        server.kill()
        server.wait()
        lab.run(host, ["ip", "address", "del", f"{address}/32", "dev", "lo"], check=True)


@contextmanager
def clock_ahead(lab: Lab, host: str, seconds: int, folder: Path) -> Iterator[None]:
    """Let `date` of one host be ahead.

    A double for the clock: all hosts share that of the machine, for which there is no namespace.
    """
    real = shutil.copy("/usr/bin/date", folder / "real-date")
    double = folder / "date"
    double.write_text(f"#!/bin/sh\nexec {real} --date='{seconds} seconds' \"$@\"\n")
    double.chmod(0o755)
    with mounted(lab, host, "--bind", str(double), "/usr/bin/date"):
        yield


@contextmanager
def interface(lab: Lab, name: str, *hosts: str) -> Iterator[None]:
    """Give hosts one more network interface, with an address."""
    for number, host in enumerate(hosts, 1):
        lab.run(host, ["ip", "link", "add", name, "type", "bridge"], check=True)
        lab.run(host, ["ip", "address", "add", f"10.78.0.{number}/16", "dev", name], check=True)
        lab.run(host, ["ip", "link", "set", name, "up"], check=True)
    try:
        yield
    finally:
        for host in hosts:
            lab.run(host, ["ip", "link", "del", name], check=True)


@contextmanager
def full_shared_memory(lab: Lab, host: str) -> Iterator[None]:
    """Fill /dev/shm of a host; a small one, so that filling it costs little.

    DeepSpeed leaves its buffers there when a job is killed.
    """
    used = lab.run(host, ["df", "-k", "--output=used", "/dev/shm"], check=True).stdout.split()[-1]
    size_kib = int(used) + (80 << 10)
    lab.run(host, ["mount", "-o", f"remount,size={size_kib}k", "/dev/shm"], check=True)
    try:
        lab.run(host, ["fallocate", "-l", "79m", "/dev/shm/left-over"], check=True)
        yield
    finally:
        lab.run(host, ["rm", "-f", "/dev/shm/left-over"], check=True)
        lab.run(host, ["mount", "-o", "remount,size=50%", "/dev/shm"], check=True)


@contextmanager
def full_disk(lab: Lab, host: str, runs: Path) -> Iterator[None]:
    """Let /tmp and the folder of the runs be one small disk of a host, and full.

    What the practice cluster, the checkout and its Python have in /tmp is still there.
    """
    disk = lab.layout.host_dir(host) / "full-disk"
    disk.mkdir(exist_ok=True)
    needed = (lab.layout.root, runs, ROOT, Path(sys.prefix))
    tops = {
        Path("/tmp", path.relative_to("/tmp").parts[0])
        for path in needed
        if path.is_relative_to("/tmp")
    }
    script = """
        mount -t tmpfs -o size=2m own "$1" && disk=$1 runs=$2 && shift 2
        mkdir "$disk/runs"
        for top; do
            mkdir "$disk/${top##*/}" && mount --rbind "$top" "$disk/${top##*/}" || exit
        done
        dd if=/dev/zero of="$disk/left-over" bs=4k 2>/dev/null
        mount --rbind "$disk" /tmp && mount --bind /tmp/runs "$runs"
    """
    argv = ["sh", "-c", script, "sh", str(disk), str(runs), *map(str, sorted(tops))]
    try:
        lab.run(host, argv, check=True)
        yield
    finally:
        lab.run(host, ["umount", "--recursive", "--lazy", "/tmp"], cwd="/", check=True)
        lab.run(host, ["umount", "--recursive", "--lazy", str(disk)], cwd="/", check=True)


@contextmanager
def sshd_stopped(lab: Lab, host: str) -> Iterator[None]:
    """End the sshd of a host."""
    _end_sshd(lab, host)
    try:
        yield
    finally:
        lab.run(host, sshd.daemon(lab.layout, host), check=True)


@contextmanager
def sshd_hung(lab: Lab, host: str) -> Iterator[None]:
    """Let the sshd of a host hang: the kernel still accepts connections for it."""
    with stopped(listeners(lab, host, f"sshd_config_{host}")):
        yield


@contextmanager
def sshd_changed(
    lab: Lab, host: str, folder: Path, *lines: str, key: bool = False
) -> Iterator[None]:
    """Start the sshd of a host anew with other lines of configuration, or another key."""
    text = (lab.layout.ssh / f"sshd_config_{host}").read_text()
    if key:
        new = folder / "new_host_key"
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(new)]
        lab.run(host, argv, check=True)
        text = text.replace(f"HostKey {lab.layout.ssh}/host_key_{host}", f"HostKey {new}")
    config = folder / f"sshd_config_{host}_changed"
    config.write_text("\n".join((*lines, text)))
    _end_sshd(lab, host)
    lab.run(host, [sshd.sshd_program(), "-f", str(config)], check=True)
    try:
        yield
    finally:
        for pid in listeners(lab, host, config.name):
            os.kill(pid, signal.SIGKILL)
        lab.run(host, sshd.daemon(lab.layout, host), check=True)


def _end_sshd(lab: Lab, host: str) -> None:
    (pid,) = listeners(lab, host, f"sshd_config_{host}")
    os.kill(pid, signal.SIGKILL)


@contextmanager
def drained(lab: Lab, node: str, reason: str) -> Iterator[None]:
    """Drain a node of Slurm."""
    scontrol = ["scontrol", "update", f"NodeName={node}"]
    lab.run("head", [*scontrol, "State=DRAIN", f"Reason={reason}"], check=True)
    try:
        yield
    finally:
        resume(lab, node)


@contextmanager
def configured(lab: Lab, old: str, new: str) -> Iterator[None]:
    """Replace some text of slurm.conf by another."""
    configuration = lab.layout.slurm_conf
    known = configuration.read_text()

    def configure(text: str) -> None:
        write_changed(configuration, text)
        lab.run("head", ["scontrol", "reconfigure"], check=True)

    assert old in known
    configure(known.replace(old, new))
    try:
        yield
    finally:
        configure(known)


def resume(lab: Lab, node: str) -> None:
    """Let Slurm give a drained node to jobs again."""
    lab.run("head", ["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=True)


@contextmanager
def busy(lab: Lab, node: str) -> Iterator[None]:
    """Let a job have all of a node."""
    argv = ["sbatch", "--parsable", "--exclusive", f"--nodelist={node}", "--output=/dev/null"]
    job = lab.run("head", [*argv, "--wrap=exec sleep 100"], check=True).stdout.strip()
    try:
        wait_for_state(lab, "allocated", node)
        yield
    finally:
        lab.run("head", ["scancel", job], check=True)
        wait_for_state(lab, "idle", node)


def wait_for_state(lab: Lab, state: str, *nodes: str, within_s: float = 120.0) -> None:
    """Wait until Slurm says this of all the nodes."""
    sinfo = ["sinfo", "--Node", "--noheader", f"--nodes={','.join(nodes)}", "--format=%T"]
    deadline = time.monotonic() + within_s
    while (said := set(lab.run("head", sinfo).stdout.split())) != {state}:
        assert time.monotonic() < deadline, f"{nodes} are {said}, not {state}"
        time.sleep(0.05)


@contextmanager
def shaped(lab: Lab, rate: str, *, slow: dict[tuple[str, str], str]) -> Iterator[None]:
    """Give all nodes `rate`, so that the CPUs of this machine do not count, and less to links.

    Without tc's classifiers, which not every kernel has: nft chooses the class by destination.
    """
    for node in lab.nodes:
        for argv in (
            "tc qdisc add dev eth0 root handle 1: htb default 1",
            f"tc class add dev eth0 parent 1: classid 1:1 htb rate {rate} quantum 6000",
        ):
            lab.run(node, argv.split(), check=True)
    for (sender, receiver), less in slow.items():
        argv = f"tc class add dev eth0 parent 1: classid 1:2 htb rate {less} quantum 6000"
        lab.run(sender, argv.split(), check=True)
        rules = f"""table ip slow {{ chain out {{ type filter hook output priority 0;
            ip daddr {lab.layout.address(receiver)} meta priority set 1:2
        }}\n}}"""
        lab.run(sender, ["nft", "-f", "-"], input=rules, check=True)
    try:
        yield
    finally:
        for node in lab.nodes:
            lab.run(node, ["tc", "qdisc", "del", "dev", "eth0", "root"], check=True)
            lab.run(node, ["nft", "flush", "ruleset"], check=True)


@contextmanager
def filtered(lab: Lab, node: str, rule: str) -> Iterator[None]:
    """Set a rule for what comes to a node and leaves it, but for what Slurm's controller says.

    A node that the controller cannot reach would be down for the tests after this one.
    """
    head = lab.layout.address(HEAD)
    chains = "".join(
        f"chain {hook} {{ type filter hook {hook} priority 0;\n"
        f"ip saddr {head} accept\nip daddr {head} accept\n{rule}\n}}\n"
        for hook in ("input", "output")
    )
    rules = f"table ip wall {{\n{chains}}}"
    lab.run(node, ["nft", "-f", "-"], input=rules, check=True)
    try:
        yield
    finally:
        lab.run(node, ["nft", "flush", "ruleset"], check=True)
