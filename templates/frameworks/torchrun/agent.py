"""torchrun, with four additions: agent.py TORCHRUN_ARGUMENTS...

A store that outlives its agents. The agent of the first node serves the key-value store through
which agents leave together. It may be gone before another has read the last key, which then reports
a lost connection with two screens of C++ frames, after a run that succeeded (pytorch#69520). A
multi-tenant store is shared within a process: held here as well, it is there until the others have
left. It listens at the head's own address, and not at all that the machine has.

A word on which rank failed first, by clusterkit_failure.py beside this file. torchrun itself exits
with 1, whatever its rank died of. And on the first that ended well, which others may wait for.

A folder for its error files that goes when the job ends. torchrun leaves one in /tmp for each job.

The flight recorder's variables under the names that torch had for them before 2.8.
"""

import gc
import os
import socket
import sys
import time
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import clusterkit_failure

gc.disable()  # 30 % of the CPU time that torch takes to be imported, and nothing is garbage

try:
    import torch
except ModuleNotFoundError as error:  # no traceback: no line of this file is to blame
    if error.name != "torch":
        raise
    sys.exit(f"ModuleNotFoundError: {error}")
from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

gc.freeze()
gc.enable()

BACKLOG = 4096
OTHERS_LEAVE_S = 1
KEEPS_LOGS = {"PET_LOG_DIR", "PET_REDIRECTS", "PET_TEE"}
"""The options of torchrun, as variables, by which its user wants that folder."""

RENAMED = {
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
}
"""In torch 2.8, which warns of the old names."""
DECIDED = ("PET_STANDALONE", "PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT")
"""Options of torchrun by which it would load what anybody writes to its port (c10d)."""


def hold_store():
    sock = listen()
    return TCPStore(
        os.environ["CK_HEAD_ADDR"],
        int(os.environ["CK_PORT"]),
        int(os.environ["CK_NNODES"]),
        is_master=True,
        timeout=timedelta(minutes=15),
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=None if sock is None else sock.detach(),
    )


def listen():
    """Return a socket at the head's address alone; None where all addresses are needed.

    A name may lead to another address on other nodes. Whoever reaches a TCPStore may write to it.
    """
    head, port = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"])
    with suppress(OSError, ValueError):  # TCPStore itself then tells what is wrong with the port
        family = socket.AF_INET6 if ip_address(head).version == 6 else socket.AF_INET
        return socket.create_server((head, port), family=family, backlog=BACKLOG)
    return None


def serves_store():
    # With c10d, whichever agent comes first serves it, and no port is among the arguments.
    return f"--master-port={os.environ['CK_PORT']}" in sys.argv and is_head()


def is_head():
    return os.environ["CK_NODE_RANK"] == "0"


def tell(error):
    rank, failure = error.get_first_failure()
    # Only scripts decorated with @record write an error file.
    written = Path(failure.error_file).is_file()
    message = failure.error_file_data.get("message") if written else None
    code = failure.exitcode
    clusterkit_failure.tell(
        os.environ["CK_NODE_NAME"],
        rank,
        code if code >= 0 else 128 - code,
        local_rank=failure.local_rank,
        message=message.get("message") if isinstance(message, dict) else message,
    )


def tell_of_ends(watched=SubprocessContext):
    """Have each look of the agent at its ranks note which have ended by themselves, and well."""
    look: Any = getattr(watched, "_poll", None)  # a later torch may call it otherwise

    def looked(ranks):
        running: set[int] = getattr(ranks, "_running_local_ranks", set())
        before = set(running)
        result = look(ranks)
        for local_rank in sorted(before - running):
            if ranks.subprocess_handlers[local_rank].proc.returncode == 0:
                rank = int(ranks.envs[local_rank]["RANK"])
                clusterkit_failure.tell_ended(os.environ["CK_NODE_NAME"], rank)
        return result

    if look is not None:
        watched._poll = looked  # noqa: SLF001 - nothing else tells


def clean_up_later():
    if not KEEPS_LOGS & os.environ.keys():
        os.environ["PET_LOG_DIR"] = str(Path(os.environ["CK_TMP"], "torchelastic"))


def ask_older_recorders():
    if torch.__version__ < "2.8":  # compared as versions
        for name, before in RENAMED.items():
            if name in os.environ:
                os.environ.setdefault(before, os.environ[name])


def heed_no_other_rendezvous():
    for name in DECIDED:
        if os.environ.pop(name, None) is not None:
            print(f"clusterkit: {name} gives way to the job's own rendezvous", file=sys.stderr)


if __name__ == "__main__":
    heed_no_other_rendezvous()
    clean_up_later()
    ask_older_recorders()
    tell_of_ends()
    store = hold_store() if serves_store() else None
    try:
        main()
    except ChildFailedError as error:
        tell(error)
        raise
    if store is not None and os.environ["CK_NNODES"] != "1":
        time.sleep(OTHERS_LEAVE_S)
