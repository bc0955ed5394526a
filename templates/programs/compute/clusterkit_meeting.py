"""Let the ranks of a job meet, work at the same time, and tell rank 0 what they have found.

For the programs of `bench compute` and `bench storage`, which torchrun starts on every node. Rank 0
writes a document into the folder of results, again whenever a rank has spoken, so that it is there
also where one never answers.
"""

import json
import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

PATIENCE_S = 300.0
"""How long ranks wait for each other at most: importing torch from a busy folder takes minutes."""
START_S, STARTS = 30.0, 4.0
"""All ranks start together, and import the same: one that needs these seconds, and so many times
longer than the slowest that has come, does not come."""
LATE_S = 60.0
"""How much longer than the work an answer may take."""
LARGEST = 1 << 19
"""Bytes of an answer; those with readings of GPUs have some tens of thousands."""


def age_s():
    """Return how long this process has been there."""
    stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    began = int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


def start_patience_s(known):
    """Return how long to wait for the first word of all, from how long others took to come."""
    slowest = max((one["start_s"] for one in known if one), default=PATIENCE_S)
    return min(PATIENCE_S, START_S + STARTS * slowest)


def gather(store, what, known, patience_s, keep):
    """Put what each rank says into `known`; return the ranks that have not said it in time.

    `patience_s` gives the seconds, from what is known by then.
    """
    missing, began = set(range(len(known))), time.monotonic()
    while missing and time.monotonic() < began + patience_s(known):
        there = [rank for rank in sorted(missing) if store.check([f"{what}/{rank}"])]
        for rank in there:
            said = store.get(f"{what}/{rank}")
            if len(said) <= LARGEST:
                known[rank] = json.loads(said)
        missing.difference_update(there)
        if there:
            keep()
        time.sleep(0.1)
    return sorted(missing)


def node():
    return os.environ.get("CK_NODE_NAME") or socket.gethostname()


class Meeting:
    """The ranks of this job.

    Args:
        name: Of the document, such as `compute`; its kind is `clusterkit-compute`.
    """

    def __init__(self, name):
        patience = timedelta(seconds=2 * PATIENCE_S)
        whole, self.rank, self.world = next(rendezvous("env://", timeout=patience))
        self.store = dist.PrefixStore(f"clusterkit-{name}", whole)
        self.store.set_timeout(patience)
        self.file = f"{name}.json"
        self.document: dict[str, Any] = {"schema": 1, "kind": f"clusterkit-{name}"}
        self.document.update(complete=False, torch=torch.__version__, ranks=[None] * self.world)

    def keep(self):
        """Write down what is known by now."""
        if os.environ.get("CK_RESULTS"):
            folder = Path(os.environ["CK_RESULTS"])
            folder.mkdir(parents=True, exist_ok=True)
            written = folder / f".{self.file}"
            written.write_text(json.dumps(self.document), encoding="utf-8")
            written.replace(folder / self.file)

    def agree(self, me, decide=lambda _: None):
        """Return what rank 0 decides once all have said who they are, or those that come."""
        me["start_s"] = age_s()
        self.store.set(f"who/{self.rank}", json.dumps(me))
        if self.rank == 0:
            ranks = self.document["ranks"]
            gather(self.store, "who", ranks, start_patience_s, self.keep)
            self.store.set("go", json.dumps(decide(ranks)))
        return json.loads(self.store.get("go"))

    def end(self, answer, late_s):
        """Tell rank 0, which waits for so long, and fails where a rank has not answered."""
        self.store.set(f"answer/{self.rank}", json.dumps(answer))
        if self.rank:
            return
        ranks = self.document["ranks"]
        silent = gather(self.store, "answer", ranks, lambda _: late_s, self.keep)
        self.document["complete"] = True
        self.keep()
        if silent:
            sys.exit(f"Error: ranks without an answer: {', '.join(map(str, silent))}")
