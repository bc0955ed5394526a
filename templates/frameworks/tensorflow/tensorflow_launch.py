"""Start the TensorFlow processes of one node, each with its TF_CONFIG: launch.py FLAGS COMMAND...

Runs once on every node of a job, with clusterkit's CK_* variables in its environment. Ranks have
their roles in the order of TensorFlow's own SlurmClusterResolver: chief, evaluator, ps, worker.
A ps serves for ever, and so do the workers of a ParameterServerStrategy: the job is over when its
chief has ended, or all workers where no chief has any ps. What is left then is taken down.
"""

import argparse
import json
import os
import sys

import clusterkit_ranks
import tensorflow_meeting


def main():
    parser = argparse.ArgumentParser(description="start the processes of one node")
    parser.add_argument(
        "--processes", type=int, help="one per slot, so many on all nodes in all; else one per node"
    )
    for role in ("chief", "evaluator", "ps"):
        parser.add_argument(f"--{role}", type=int, default=0)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    if os.environ.pop("TF_CONFIG", None) is not None:
        print("clusterkit: the TF_CONFIG that was set gives way to the job's own", file=sys.stderr)
    slots = [int(count) for count in os.environ["CK_SLOTS"].split()]
    shares = [1 for _ in slots]
    if options.processes is not None:
        shares = clusterkit_ranks.shares_of(options.processes, slots)
    tasks = tasks_of(options, sum(shares))
    node_rank = int(os.environ["CK_NODE_RANK"])
    first = sum(shares[:node_rank])
    environments = {
        rank: environment_of(rank, rank - first, options, shares)
        for rank in range(first, first + shares[node_rank])
    }
    if len(tasks) == 1:  # MirroredStrategy, which is for no TF_CONFIG
        sys.exit(clusterkit_ranks.run(options.command, environments))

    meeting = tensorflow_meeting.Meeting(len(environments))
    for rank, environment in environments.items():
        environment["TF_CONFIG"] = tf_config(tasks, meeting.addresses, rank)
        environment["no_grpc_proxy"] = no_proxy(meeting.addresses, environment)
    awaited = {rank for rank in environments if decides(tasks[rank][0], options)}
    meeting.release_ports()
    code = clusterkit_ranks.run(
        options.command, environments, lambda running: meeting.over(not awaited & running)
    )
    sys.exit(meeting.leave(code))


def tasks_of(options, world):
    """Return role and index of every rank."""
    counts = {role: getattr(options, role) for role in ("chief", "evaluator", "ps")}
    counts["worker"] = world - sum(counts.values())
    if counts["worker"] < 1:
        sys.exit(f"clusterkit: {world} processes leave no worker beside {vars(options)}")
    return [(role, index) for role, count in counts.items() for index in range(count)]


def decides(role, options):
    """Tell whether the job continues until a process of this role has ended."""
    return role == "chief" or (role == "worker" and not (options.ps and options.chief))


def tf_config(tasks, addresses, rank):
    role, index = tasks[rank]
    cluster: dict[str, list[str]] = {}
    for (other, _), address in zip(tasks, addresses, strict=True):
        # An evaluator counts those of its own kind; to all others it does not belong.
        if other != "evaluator" or role == "evaluator":
            cluster.setdefault(other, []).append(address)
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})


def no_proxy(addresses, environment):
    """Return the hosts that gRPC reaches without a proxy: it would ask one for the job's own."""
    others = environment.get("no_grpc_proxy", environment.get("no_proxy", ""))
    hosts = {address.rpartition(":")[0] for address in addresses}
    return ",".join([*sorted(hosts), *filter(None, [others])])


def environment_of(rank, local_rank, options, shares):
    environment = {**os.environ, **clusterkit_ranks.srun_variables(rank, shares)}
    node_rank = int(environment["CK_NODE_RANK"])
    if options.ps:
        # Or a coordinator waits for a server that has gone, instead of being told.
        environment.setdefault("GRPC_FAIL_FAST", "use_caller")
    if options.processes is not None:
        # TensorFlow takes all memory of all GPUs that it sees, and a thread for each core.
        slots = int(environment["CK_SLOTS"].split()[node_rank])
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        gpus = [str(slot) for slot in range(slots)] if visible is None else visible.split(",")
        if len(gpus) >= slots:
            environment["CUDA_VISIBLE_DEVICES"] = gpus[local_rank]
        environment.setdefault("TF_NUM_INTRAOP_THREADS", environment["OMP_NUM_THREADS"])
    return environment


if __name__ == "__main__":
    main()
