"""`accelerate launch`, with what torchrun's agent.py adds, and the CPU where there is nothing else.

launch.py LAUNCH_ARGUMENTS... Accelerate starts its ranks through torchrun's agent, so that what
stands in agent.py holds here: a store that outlives its agents, a word on the first rank to fail
and on the first to end well, a folder of error files that goes with the job, older recorders.
Without any accelerator, each rank would train alone unless Accelerate is told to use the CPU.
"""

import os
import time

import agent
import torch
import torch.distributed.run
from accelerate.commands.launch import main
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

run = torch.distributed.run.run


def run_with_store(arguments):
    # Not sooner: Accelerate refuses a port that somebody listens on.
    store = agent.hold_store() if agent.is_head() else None
    agent.clean_up_later()
    agent.ask_older_recorders()
    agent.tell_of_ends()
    # What Accelerate hands on was read by its own parser, which knows no variables.
    arguments.log_dir = arguments.log_dir or os.environ.get("PET_LOG_DIR")
    run(arguments)
    if store is not None and os.environ["CK_NNODES"] != "1":
        time.sleep(agent.OTHERS_LEAVE_S)


if __name__ == "__main__":
    torch.distributed.run.run = run_with_store
    if not torch.accelerator.is_available():
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    try:
        main()
    except ChildFailedError as error:
        agent.tell(error)
        raise
