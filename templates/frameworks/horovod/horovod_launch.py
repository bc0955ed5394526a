"""Start the Horovod ranks of one node on gloo, without SSH: launch.py --processes N COMMAND...

Runs once on every node of a job, with clusterkit's CK_* variables in its environment. The first
node serves Horovod's own rendezvous; every node starts its local ranks with the HOROVOD_*
variables that `horovodrun` would have set (horovod/runner/gloo_run.py, 0.28.1). Needs nothing
but horovod, and the files beside it.
"""

import argparse
import os
import signal
import sys

import clusterkit_ranks
import horovod_rendezvous
from clusterkit_peers import PeerError
from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.gloo_run import create_slot_env_vars
from horovod.runner.http.http_server import RendezvousHandler


def main():
    parser = argparse.ArgumentParser(description="start the Horovod ranks of one node")
    parser.add_argument("--processes", type=int, required=True, help="ranks on all nodes together")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    nodes = os.environ["CK_NODES"].split()
    slots = [int(count) for count in os.environ["CK_SLOTS"].split()]
    node = nodes[int(os.environ["CK_NODE_RANK"])]
    # Horovod itself passes N as the minimum only, and would fill every slot (hosts 4,4 and N=6
    # give 8 ranks); as minimum and maximum it is the number of ranks.
    processes = min(options.processes, sum(slots))
    hosts = [HostInfo(name, count) for name, count in zip(nodes, slots, strict=True)]
    assignments = get_host_assignments(hosts, processes, processes)

    rendezvous = serve_rendezvous(assignments) if node == nodes[0] else None
    try:
        server = rendezvous or horovod_rendezvous.Door()
    except PeerError as error:
        sys.exit(f"clusterkit: no rendezvous: {error}")
    environments = {
        slot.rank: rank_environment(slot, server.server_port)
        for slot in assignments
        if slot.hostname == node
    }
    code = clusterkit_ranks.run(options.command, clusterkit_ranks.told_of(environments))
    if rendezvous and code == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        rendezvous.wait_for_nodes()
    sys.exit(code)


def serve_rendezvous(assignments):
    server = horovod_rendezvous.Rendezvous(RendezvousHandler)
    server.init(assignments)
    return server


def rank_environment(slot, port):
    return {
        **os.environ,
        **create_slot_env_vars(slot),
        **horovod_rendezvous.variables(port),
    }


if __name__ == "__main__":
    main()
