"""Ask nodes through a transport: `ask_client WANTED`, run on a host of the practice cluster.

WANTED is JSON: `via`, `nodes`, `probes` (name -> snippet or [snippet, timeout_s]) and `options` of
the transport. Prints the replies and what it cost as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import sys
import time
from typing import Any

from clusterkit.core.errors import ClusterkitError
from clusterkit.core.files import plain
from clusterkit.core.model import Host
from clusterkit.transport.base import Transport
from clusterkit.transport.local import LocalTransport
from clusterkit.transport.probe import PreflightJob, Probe
from clusterkit.transport.script import compose
from clusterkit.transport.srun import SrunOptions, SrunTransport
from clusterkit.transport.ssh.config import SshOptions
from clusterkit.transport.ssh.transport import SshTransport


def main(text: str) -> None:
    wanted = json.loads(text)
    nodes = tuple(wanted["nodes"])
    snippets = {name: _pair(said) for name, said in wanted["probes"].items()}
    probes = [
        Probe(name=name, command=snippet, timeout_s=timeout_s, parse=str)
        for name, (snippet, timeout_s) in snippets.items()
    ]
    compound = compose(probes, PreflightJob(hosts=nodes), token=f"ck{secrets.token_hex(8)}")
    heard: list[str] = []
    began, began_cpu = time.monotonic(), time.process_time()
    try:
        replies = _transport(wanted["via"], wanted.get("options", {})).ask(
            nodes, compound, on_reply=lambda reply: heard.append(reply.node)
        )
    except ClusterkitError as error:
        print(json.dumps({"error": str(error)}))
        return
    print(
        json.dumps(
            {
                "replies": plain(replies),
                "heard": heard,
                "seconds": time.monotonic() - began,
                "cpu_s": time.process_time() - began_cpu,
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "timeout_s": compound.timeout_s,
            }
        )
    )


def _pair(said: Any) -> tuple[str, float]:
    return (said, 10.0) if isinstance(said, str) else (said[0], said[1])


def _transport(via: str, options: dict[str, Any]) -> Transport:
    if via == "ssh":
        hosts = {name: Host(name=name, **host) for name, host in options.pop("hosts", {}).items()}
        files = tuple(options.pop("config_files", ()))
        return SshTransport(SshOptions(**options, hosts=hosts, config_files=files))
    if via == "srun":
        options.setdefault("job_id", os.environ.get("SLURM_JOB_ID"))
        return SrunTransport(SrunOptions(**{**options, "extra": tuple(options.get("extra", ()))}))
    return LocalTransport()


if __name__ == "__main__":
    main(*sys.argv[1:])
