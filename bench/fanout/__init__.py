"""One script on 64 addresses: clusterkit's ssh transport against clush and pdsh.

All three run the same compound script in the same round, one after the other, from the head of a
practice cluster whose nodes answer at many addresses. clush and pdsh start OpenSSH's client for
each host. pdsh hands nothing to standard input, so it runs the script from a shared folder.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.cluster import practice_cluster
from bench.fanout.client import script
from bench.figures import BenchError
from clusterkit.core.hosts.hostlist import fold
from tests.lab.fanout import FanOut, fanned_out
from tests.lab.lab import Lab

HOSTS = 64
OURS = "clusterkit"
OTHERS = {"clush": "clustershell", "pdsh": "pdsh"}
"""Program -> Debian package."""

# Short, as in the race; beside that one, so that both can be stopped and left over apart.
ROOT = Path("/tmp/ck-bench-fan")
CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One fan-out of one contender."""

    wall_s: float
    """From the start of its process to the end."""
    cpu_s: float
    """Of the client's side: its process and all that it starts."""
    peak_mib: float | None = None
    ask_s: float | None = None
    """Without the start of Python and the imports; known of our own only."""


Round = Mapping[str, Run]


def measure(rounds: int) -> tuple[Round, ...]:
    """Run `rounds` rounds after one that does not count.

    Raises:
        BenchError: the lab did not start, or somebody did not reach every host.
    """
    if missing := [package for name, package in OTHERS.items() if shutil.which(name) is None]:
        raise BenchError(f"nobody to compare with: apt-get install {' '.join(missing)}")
    with practice_cluster(ROOT, 3) as lab:
        (lab.shared / "script.sh").write_text(script().script)
        with fanned_out(lab, HOSTS) as fan:
            return tuple(_round(lab, fan, number) for number in range(rounds + 1))[1:]


def _round(lab: Lab, fan: FanOut, number: int) -> Round:
    """Let all run, each first in its turn."""
    names = (OURS, *OTHERS)
    first = number % len(names)
    return {name: _run(lab, fan, name) for name in (*names[first:], *names[:first])}


def _run(lab: Lab, fan: FanOut, name: str) -> Run:
    hosts, config, file = fold(fan.addresses), str(fan.ssh_config), lab.shared / "script.sh"
    argv, stdin = {
        OURS: ([sys.executable, "-m", "bench.fanout.client", config, hosts], None),
        "clush": (["clush", "-f", str(HOSTS), "-o", f"-F {config}", "-w", hosts, "sh"], file),
        "pdsh": (["pdsh", "-R", "ssh", "-f", str(HOSTS), "-w", hosts, f"sh {file}"], None),
    }[name]
    before = _children_cpu_s()
    began = time.monotonic()
    done = lab.run(
        "head",
        argv,
        cwd=CHECKOUT,
        env={"PDSH_SSH_ARGS_APPEND": f"-F {config}", "PYTHONPATH": str(CHECKOUT)},
        input=stdin.read_text() if stdin else None,
        timeout_s=180,
    )
    wall_s = time.monotonic() - began
    told = json.loads(done.stdout) if name == OURS and done.stdout else {}
    # The last line of the compound script, from every host.
    ended = done.stdout.count(" - = 0 - -")
    if done.returncode or (name != OURS and ended != HOSTS):
        raise BenchError(f"{name} did not reach every host: {done.stderr.strip()[-300:]}")
    return Run(wall_s=wall_s, cpu_s=_children_cpu_s() - before, **told)


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
