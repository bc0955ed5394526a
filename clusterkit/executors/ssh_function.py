"""Run a submitit function on a node: `python -m clusterkit.executors.ssh_function FOLDER`.

As `submitit.core._submit` does, but with no signal held back: the keeper that starts it holds its
own, which processes inherit, and children of the function could not be ended.
"""

from __future__ import annotations

import signal
import sys

from submitit.core.submission import process_job

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    process_job(sys.argv[1])
