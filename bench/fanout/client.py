"""clusterkit's part in the fan-out: ask the hosts by ssh, and check that all have answered.

`python -m bench.fanout.client SSH_CONFIG HOSTS`; prints seconds and peak memory as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from clusterkit.core.hosts.hostlist import expand
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import PreflightJob, Probe
from clusterkit.transport.script import Compound, compose, new_token
from clusterkit.transport.ssh.config import SshOptions
from clusterkit.transport.ssh.transport import SshTransport

LOOKS = {
    "kernel": "uname -a",
    "release": "cat /etc/os-release",
    "processors": "head -30 /proc/cpuinfo",
    "memory": "cat /proc/meminfo",
    "limits": "ulimit -a",
    "mounts": "cat /proc/mounts",
    "space": "df -P /tmp /dev/shm",
    "interfaces": "ip -oneline address show | head -20",
    "settings": "cat /proc/sys/net/core/somaxconn /proc/sys/vm/nr_hugepages",
    "load": "cat /proc/loadavg",
}
"""What an everyday preflight looks at, on a machine without GPUs."""


def script() -> Compound:
    """Return what every contender runs on every host."""
    probes = [Probe(name=name, command=command, parse=str) for name, command in LOOKS.items()]
    return compose(probes, PreflightJob(hosts=()), token=new_token())


def main(ssh_config: str, hosts: str) -> int:
    """Ask, and print; return 1 where not everybody has answered everything."""
    transport = SshTransport(SshOptions(config_files=(ssh_config,)))
    began = time.monotonic()
    replies = transport.ask(expand(hosts), script(), on_reply=lambda _: None)
    seconds = time.monotonic() - began
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"ask_s": seconds, "peak_mib": peak_mib}))
    return 0 if all(_is_whole(reply) for reply in replies) else 1


def _is_whole(reply: Reply) -> bool:
    return reply.reach.complete and len(reply.outputs) == len(LOOKS)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
