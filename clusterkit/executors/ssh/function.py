"""Run a submitit function on a node: `python -m clusterkit.executors.ssh.function FOLDER`.

As `submitit.core._submit` does, but with pickles that nobody else can write, and no signal held
back: the agent that starts it holds its own, which processes inherit, and children of the function
could not be ended.
"""

from __future__ import annotations

import signal
import sys

from submitit.core import utils
from submitit.core.submission import process_job

from clusterkit.core.errors import UserError
from clusterkit.executors.submitit_job import dump_private, load_own

if __name__ == "__main__":
    utils.pickle_load, utils.cloudpickle_dump = load_own, dump_private
    # A notice that comes before the function can heed it would kill it (SshJobEnvironment).
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGUSR2})
    try:
        process_job(sys.argv[1])
    except UserError as error:
        sys.exit(f"clusterkit: error: {error}")
