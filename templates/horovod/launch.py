"""Start the Horovod ranks of one node on gloo, without SSH: launch.py --processes N COMMAND...

Runs once on every node of a job, with clusterkit's CK_* variables in its environment. The first
node serves Horovod's own rendezvous; every node starts its local ranks with the HOROVOD_*
variables that `horovodrun` would have set (horovod/runner/gloo_run.py, 0.28.1). Needs nothing
but horovod, and clusterkit_ranks.py beside it.
"""

import argparse
import os
import socket
import sys
import threading
import time

import clusterkit_ranks
from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.gloo_run import create_slot_env_vars
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

RENDEZVOUS_TIMEOUT_S = 300


def main():
    parser = argparse.ArgumentParser(description="start the Horovod ranks of one node")
    parser.add_argument("--processes", type=int, required=True, help="ranks on all nodes together")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    nodes = os.environ["CK_NODES"].split()
    slots = [int(count) for count in os.environ["CK_SLOTS"].split()]
    node = nodes[int(os.environ["CK_NODE_RANK"])]
    head, port = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"])
    # Horovod itself passes N as the minimum only, and would fill every slot (hosts 4,4 and N=6
    # give 8 ranks); as minimum and maximum it is the number of ranks.
    processes = min(options.processes, sum(slots))
    hosts = [HostInfo(name, count) for name, count in zip(nodes, slots, strict=True)]
    assignments = get_host_assignments(hosts, processes, processes)

    if node == nodes[0]:
        serve_rendezvous(port, assignments)
    wait_for_rendezvous(head, port)
    environments = {
        slot.rank: rank_environment(slot, head, port)
        for slot in assignments
        if slot.hostname == node
    }
    sys.exit(clusterkit_ranks.run(options.command, environments))


def serve_rendezvous(port, assignments):
    server = RendezvousHTTPServer(("", port), RendezvousHandler, 0)
    server.init(assignments)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def wait_for_rendezvous(head, port):
    deadline = time.monotonic() + RENDEZVOUS_TIMEOUT_S
    while True:
        try:
            with socket.create_connection((head, port), timeout=5):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"no rendezvous at {head}:{port} after {RENDEZVOUS_TIMEOUT_S} s: {error}")
            time.sleep(0.2)


def rank_environment(slot, head, port):
    environment = {
        **os.environ,
        **create_slot_env_vars(slot),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": socket.gethostbyname(head),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    environment.setdefault("HOROVOD_GLOO_IFACE", environment.get("GLOO_SOCKET_IFNAME", ""))
    if environment.get("CK_FAILURE"):
        # There is a sitecustomize.py, which says what for.
        before = environment["CK_PYTHONPATH"] = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (environment["CK_TMP"], before)))
    return environment


if __name__ == "__main__":
    main()
