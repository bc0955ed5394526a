"""Run the ranks of one node, and end them together: for the launchers of frameworks without one.

The exit code is that of the first local rank that failed, as a shell gives it; which that was is
told by clusterkit_failure.py beside this file, or by the rank itself (ranks_sitecustomize.py). One
that has only lost another leaves a note, `lost-another-RANK` in CK_TMP, with how far the output had
come.
"""

import os
import select
import signal
import subprocess
import time
from pathlib import Path

import clusterkit_failure

GRACE_S = 10


def shares_of(processes, slots):
    """Return how many processes each node has, in rank order: as many as slots, while there are."""
    shares: list[int] = []
    for count in slots:
        shares.append(min(count, processes - sum(shares)))
    return shares


def srun_variables(rank, shares):
    """Return what `srun` with a task for each process sets; nothing outside of Slurm.

    There Lightning, JAX and TensorFlow's SlurmClusterResolver read it.
    """
    if "SLURM_JOB_ID" not in os.environ:
        return {}
    node_rank, world = int(os.environ["CK_NODE_RANK"]), str(sum(shares))
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank - sum(shares[:node_rank])),
        "SLURM_NODEID": str(node_rank),
        "SLURM_NNODES": os.environ["CK_NNODES"],
        "SLURM_NTASKS": world,
        "SLURM_NPROCS": world,
        "SLURM_NTASKS_PER_NODE": str(shares[node_rank]),
        "SLURM_STEP_NUM_TASKS": world,
        "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, shares)),
        "SLURM_STEP_NODELIST": ",".join(os.environ["CK_NODES"].split()),
    }


def told_of(environments):
    """Return the environments of ranks, local ones in order, so that their Python tells of itself.

    That is done by a sitecustomize.py in CK_TMP, ranks_sitecustomize.py, which says what for.
    """
    if not os.environ.get("CK_FAILURE"):
        return environments
    return {
        rank: {
            **environment,
            "CK_TOLD_AS": f"{os.getpid()} {rank} {local_rank}",
            "PYTHONPATH": os.pathsep.join(
                filter(None, (environment["CK_TMP"], environment.get("PYTHONPATH")))
            ),
        }
        for local_rank, (rank, environment) in enumerate(environments.items())
    }


def run(command, environments, over=lambda _: None):
    """Start `command` once for each rank, in its environment; return the exit code of the node.

    `over` is asked again and again, of the ranks that still run, how the node is to end now.
    """
    ended = wakes_when_one_ends()
    ranks = {
        rank: subprocess.Popen(command, env=environment)
        for rank, environment in environments.items()
    }
    signal.signal(signal.SIGTERM, lambda *_: end(ranks.values()))
    return wait_for(ranks, over, ended)


def wakes_when_one_ends():
    """Return a pipe that can be read once a child has ended.

    Who loses another rank fails within moments: to look now and then would find both ended.
    """
    reading, writing = os.pipe()
    for end_of_pipe in (reading, writing):
        os.set_blocking(end_of_pipe, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reading


def wait_for(ranks, over, ended):
    running = dict(ranks)
    while running:
        for rank, process in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            del running[rank]
            if code != 0:
                code = code if code > 0 else 128 - code
                tell(rank, list(ranks).index(rank), code)
                end(running.values())
                return code
            clusterkit_failure.tell_ended(os.environ["CK_NODE_NAME"], rank)
        code = over(set(running))
        if code is not None:
            end(running.values())
            if code:
                time.sleep(clusterkit_failure.OTHERS_TELL_S)
            return code
        if select.select([ended], [], [], 0.1)[0]:
            os.read(ended, 4096)
    return 0


def output_until_lost(rank):
    """Return how far the output had come: what others say who fail next is not the rank's own."""
    output = clusterkit_failure.output()
    notes = Path(os.environ["CK_TMP"]).glob("lost-another-*")
    others = (note for note in notes if note.name != f"lost-another-{rank}")
    sizes = [int(text) for note in others if (text := note.read_text())]
    return output and {**output, "size": min([output["size"], *sizes])}


def tell(rank, local_rank, code):
    clusterkit_failure.tell(
        os.environ["CK_NODE_NAME"],
        rank,
        code,
        local_rank=local_rank,
        log=output_until_lost(rank),
    )


def end(ranks):
    for rank in ranks:
        rank.terminate()
    deadline = time.monotonic() + GRACE_S
    for rank in ranks:
        try:
            rank.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
