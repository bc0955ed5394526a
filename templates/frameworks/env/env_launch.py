"""Start one process for each slot of a node, told who it is: launch.py --processes N COMMAND...

With --per-node K, at most K on each node.

Runs once on every node of a job, with clusterkit's CK_* variables in its environment. Each process
finds what torch.distributed (`env://`) and Lightning read, and on Slurm the variables that `srun`
with a task for each slot would have set, which Lightning and JAX prefer there.
"""

import argparse
import os
import sys

import clusterkit_ranks


def main():
    parser = argparse.ArgumentParser(description="start the processes of one node")
    parser.add_argument("--processes", type=int, required=True, help="on all nodes together")
    parser.add_argument("--per-node", type=int, help="fewer than a node has slots")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    slots = [int(count) for count in os.environ["CK_SLOTS"].split()]
    node_rank = int(os.environ["CK_NODE_RANK"])
    each = 1
    if options.per_node is not None:
        each = max(1, slots[node_rank] // options.per_node)
        slots = [min(count, options.per_node) for count in slots]
    shares = clusterkit_ranks.shares_of(options.processes, slots)
    first = sum(shares[:node_rank])
    environments = {
        first + local: {
            **environment_of(first + local, local, shares),
            "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(local * each, (local + 1) * each))),
        }
        for local in range(shares[node_rank])
    }
    sys.exit(clusterkit_ranks.run(options.command, clusterkit_ranks.told_of(environments)))


def environment_of(rank, local_rank, shares):
    node_rank = os.environ["CK_NODE_RANK"]
    head, port = os.environ["CK_HEAD_ADDR"], os.environ["CK_PORT"]
    environment = {
        **os.environ,
        **clusterkit_ranks.srun_variables(rank, shares),
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(sum(shares)),
        "LOCAL_WORLD_SIZE": str(shares[int(node_rank)]),
        "NODE_RANK": node_rank,
        "MASTER_ADDR": head,
        "MASTER_PORT": port,
        "JAX_COORDINATOR_ADDRESS": f"{head}:{port}",
    }
    # A signal means the end here, which JAX would only note for scripts that ask it.
    environment.setdefault("JAX_ENABLE_PREEMPTION_SERVICE", "false")
    if "CK_NODE_ADDR" in environment:  # or the coordinator would listen on all addresses
        environment.setdefault("JAX_COORDINATOR_BIND_ADDRESS", f"{head}:{port}")
    if interface := environment.get("GLOO_SOCKET_IFNAME"):
        # TensorPipe, below torch.distributed.rpc, would take that of the host's own name as well.
        environment.setdefault("TP_SOCKET_IFNAME", interface)
    return environment


if __name__ == "__main__":
    main()
