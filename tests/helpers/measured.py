"""What a process has used until its end."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass

from bench.output import peak_mib

_LOOK_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a process has used."""

    memory_mib: float
    """The most that it had at a time since its exec, as far as that was seen."""
    cpu_s: float


def wait_measured(process: subprocess.Popen[bytes], *, within_s: float) -> Used:
    """Wait until a process has ended, which is killed where it takes longer than `within_s`.

    Its ru_maxrss cannot be used: it counts what the process that started it had.
    """
    deadline, memory_mib = time.monotonic() + within_s, 0.0
    while True:
        memory_mib = max(memory_mib, peak_mib(process.pid))
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return Used(memory_mib=memory_mib, cpu_s=usage.ru_utime + usage.ru_stime)
        if time.monotonic() > deadline:
            process.kill()
        time.sleep(_LOOK_S)
