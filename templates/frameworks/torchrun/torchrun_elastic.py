"""torchrun whose job may lose nodes: elastic.py TORCHRUN_ARGUMENTS, with agent.py beside it.

The rendezvous `clusterkit` is torch's own, but for four things. Its state is in a store that only
nodes of the job reach (clusterkit_store.py). A lost node makes the others begin a new round at
once: torch drops its entry after 15 s without a sign of life, and then waits for ranks to fail,
which with a silent network takes half an hour. Ranks follow CK_NODE_RANK, so the first node, which
serves the store, has rank 0 in every round. And the log of the first node tells who trains; so does
the file CK_ROUNDS, where that is set, a JSON line for each round.
"""

import dataclasses
import gc
import json
import os
import runpy
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

# Ranks that share the agents' store find each other by how often their own agent has restarted
# them, and agents count differently: only the one whose rank died counts that.
os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")

gc.disable()  # until agent.py has imported all of torch

import clusterkit_peers

try:
    import clusterkit_store
except ModuleNotFoundError as error:  # as in agent.py
    if error.name != "torch":
        raise
    sys.exit(f"ModuleNotFoundError: {error}")
from torch.distributed.elastic.rendezvous import RendezvousTimeoutError
from torch.distributed.elastic.rendezvous.api import rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
)

BACKEND = "clusterkit"
START_S = 600
OTHERS_LEAVE_S = 1
GATHER_AGAIN_S = 90
"""Long enough for ranks that have to be killed (30 s), and for the last call."""
LAST_CALL_S = 20
"""How long more nodes than the fewest are waited for; all of them are not waited for."""


class Handler(DynamicRendezvousHandler):
    """The rendezvous as one agent sees it."""

    members: frozenset[Any] = frozenset()
    server: Any = None

    def get_backend(self):
        """Return the name under which the registry has it."""
        return BACKEND

    def _get_store(self):
        """Return the store for the agents of one round."""
        return clusterkit_store.Store(self._store, f"{self._state_holder.state.round}/")

    def next_rendezvous(self):
        """Join the next round; give up where too few nodes are left."""
        try:
            info = super().next_rendezvous()
        except RendezvousTimeoutError:
            fewest = self.settings.min_nodes
            sys.exit(
                f"clusterkit: fewer than {fewest} nodes are left of {node_names(self.members)}"
            )
        state = self._state_holder.state
        self.members = frozenset(state.participants)
        gathered = timedelta(seconds=GATHER_AGAIN_S)
        self._settings = dataclasses.replace(
            self._settings,
            timeout=RendezvousTimeout(join=gathered, last_call=self._settings.timeout.last_call),
        )
        if is_head():
            tell_round(state.round, node_names(self.members).split())
        return info

    def num_nodes_waiting(self):
        """Return how many nodes make a new round necessary; the lost ones do as well."""
        waiting = super().num_nodes_waiting()
        state = self._state_holder.state
        gone = self.members - state.participants.keys() - state.wait_list
        if not gone or state.closed:  # closed: the others have ended, and leave
            return waiting
        if is_head():
            print(f"clusterkit: lost {node_names(gone)}", flush=True)
        return waiting or len(gone)


def is_head():
    return os.environ["CK_NODE_RANK"] == "0"


def place():
    """Return an address that sorts as the node's rank does; only that of rank 0 is ever called."""
    if is_head():
        return os.environ["CK_HEAD_ADDR"]
    return f"~{int(os.environ['CK_NODE_RANK']):06}~{os.environ['CK_NODE_NAME']}"


def node_names(nodes):
    head = os.environ["CK_NODES"].split()[0]
    return " ".join(
        node.addr.rpartition("~")[2] if node.addr.startswith("~") else head
        for node in sorted(nodes)
    )


def tell_round(number, names):
    print(f"clusterkit: round {number}: {len(names)} nodes: {' '.join(names)}", flush=True)
    if os.environ.get("CK_ROUNDS"):
        # Inside an image the run folder may not be there.
        with suppress(OSError), Path(os.environ["CK_ROUNDS"]).open("a", encoding="utf-8") as out:
            out.write(json.dumps({"nodes": names}) + "\n")


def create_handler(parameters):
    member = clusterkit_peers.member_of_job("torchrun")
    head = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"])
    try:
        # To outlive this agent's part, as in agent.py.
        Handler.server = clusterkit_store.Server(member) if is_head() else None
        start_s = parameters.get_as_int("join_timeout", START_S)
        line: Any = clusterkit_store.Line(member, head, start_s)
    except OSError as error:
        sys.exit(f"clusterkit: error: {os.environ['CK_NODE_NAME']}: {error}")
    timeouts = RendezvousTimeout(
        join=timedelta(seconds=start_s),
        last_call=timedelta(seconds=parameters.get_as_int("last_call_timeout", LAST_CALL_S)),
    )
    return Handler.from_backend(
        parameters.run_id,
        line,
        clusterkit_store.Backend(line, BACKEND, "state"),
        parameters.min_nodes,
        parameters.max_nodes,
        place(),
        timeouts,
        parameters.get_as_int("keep_alive_interval", 5),
        parameters.get_as_int("keep_alive_max_attempt", 3),
    )


if __name__ == "__main__":
    rendezvous_handler_registry.register(BACKEND, create_handler)
    runpy.run_path(str(Path(__file__).with_name("agent.py")), run_name="__main__")
    if is_head():
        time.sleep(OTHERS_LEAVE_S)
