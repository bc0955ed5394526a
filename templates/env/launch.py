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
    share = 1
    if options.per_node is not None:
        share = max(1, slots[node_rank] // options.per_node)
        slots = [min(count, options.per_node) for count in slots]
    world = min(options.processes, sum(slots))
    first = min(sum(slots[:node_rank]), world)
    last = min(first + slots[node_rank], world)
    environments = {
        first + local: {
            **environment_of(first + local, local, last - first, world),
            "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(local * share, (local + 1) * share))),
        }
        for local in range(last - first)
    }
    sys.exit(clusterkit_ranks.run(options.command, environments))


def environment_of(rank, local_rank, local_world, world):
    node_rank, nodes = os.environ["CK_NODE_RANK"], os.environ["CK_NNODES"]
    head, port = os.environ["CK_HEAD_ADDR"], os.environ["CK_PORT"]
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local_world),
        "NODE_RANK": node_rank,
        "MASTER_ADDR": head,
        "MASTER_PORT": port,
        "JAX_COORDINATOR_ADDRESS": f"{head}:{port}",
    }
    # A signal means the end here, which JAX would only note for scripts that ask it.
    environment.setdefault("JAX_ENABLE_PREEMPTION_SERVICE", "false")
    if interface := environment.get("GLOO_SOCKET_IFNAME"):
        # TensorPipe, below torch.distributed.rpc, would take that of the host's own name as well.
        environment.setdefault("TP_SOCKET_IFNAME", interface)
    if "SLURM_JOB_ID" in environment:
        environment |= {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local_rank),
            "SLURM_NODEID": node_rank,
            "SLURM_NNODES": nodes,
            "SLURM_NTASKS": str(world),
            "SLURM_NPROCS": str(world),
            "SLURM_STEP_NUM_TASKS": str(world),
            "SLURM_NTASKS_PER_NODE": str(local_world),
        }
    return environment


if __name__ == "__main__":
    main()
