"""torchrun, with a store that outlives its agents: agent.py TORCHRUN_ARGUMENTS...

The agent of the first node serves the key-value store through which agents leave together. It may
be gone before another has read the last key, which then reports a lost connection with two screens
of C++ frames, after a run that succeeded (pytorch#69520). A multi-tenant store is shared within a
process: held here as well, it is there until the others have left.
"""

import os
import time
from datetime import timedelta

from torch.distributed import TCPStore
from torch.distributed.run import main

OTHERS_LEAVE_S = 1


def hold_store():
    return TCPStore(
        os.environ["CK_HEAD_ADDR"],
        int(os.environ["CK_PORT"]),
        int(os.environ["CK_NNODES"]),
        is_master=True,
        timeout=timedelta(minutes=15),
        wait_for_workers=False,
        multi_tenant=True,
    )


if __name__ == "__main__":
    store = hold_store() if os.environ["CK_NODE_RANK"] == "0" else None
    main()
    if store is not None:
        time.sleep(OTHERS_LEAVE_S)
