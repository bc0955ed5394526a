"""Print what a process was given, and end as the first argument says: `mirror END [WORD]...`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main(end: str) -> None:
    """Print it as JSON, say a word on stderr, and end."""
    mask = os.umask(0)
    spec = sys.modules["__main__"].__spec__
    found = {
        "argv": sys.argv,
        "typed": sys.orig_argv,
        "path": sys.path,
        "environment": dict(os.environ),
        "of children": subprocess.check_output(["env"], text=True).split("\n"),
        "folder": str(Path.cwd()),
        "input": sys.stdin.read(),
        "streams": [
            (stream.encoding, stream.errors, stream.line_buffering, stream.isatty())
            for stream in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "files": sorted(map(str, Path("/proc/self/fd").iterdir())),
        "mask": mask,
        "limits": Path("/proc/self/limits").read_text(),
        "signals": {number: str(signal.getsignal(number)) for number in signal.valid_signals()},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "users": (os.getresuid(), os.getresgid(), os.getgroups()),
        "leads": (os.getpid() == os.getsid(0), os.getpid() == os.getpgrp()),
        "host": os.uname().nodename,
        "main": spec and spec.name,
        "threads": len([*Path("/proc/self/task").iterdir()]),
    }
    print(json.dumps(found), end="\r\n")
    print("a word", file=sys.stderr)
    if end.startswith("SIG"):
        sys.stdout.flush()
        os.kill(os.getpid(), signal.Signals[end])
    elif end == "error":
        raise OSError("as asked for")
    elif end == "sleep":
        child = subprocess.Popen(["sleep", "300"])
        print(child.pid, flush=True)
        time.sleep(300)
    sys.exit(int(end) if end.isdigit() else end)


if __name__ == "__main__":
    main(sys.argv[1])
