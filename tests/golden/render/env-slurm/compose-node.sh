#!/usr/bin/env bash
# train: what one node runs (env). Rendered by clusterkit 0.1.0.
# Inside an allocation everything it needs is in the environment. By hand, on each host:
#   CK_NODES="host1 host2" CK_NODE_RANK=0 bash node.sh     # and CK_NODE_RANK=1 on host2
# shellcheck disable=SC1003,SC2016,SC2054 # values are literal: so are their dollars, commas, backslashes
set -euo pipefail
# A signal ahead of the time limit (USR1, USR2) is for training scripts that handle it; for all
# the others, launchers included, it must not be deadly. An ignored signal stays ignored in children.
trap '' USR1 USR2
umask u=rwx # whatever others may: the owner can use what is written below

[[ -n ${CK_NODES:-} ]] || CK_NODES=localhost
[[ -n ${CK_SLOTS:-} ]] || CK_SLOTS=4
read -r -a ck_nodes <<<"$CK_NODES"
read -r -a ck_slots <<<"$CK_SLOTS"
CK_NNODES=${#ck_nodes[@]}
while ((${#ck_slots[@]} < CK_NNODES)); do ck_slots+=("${ck_slots[0]}"); done
CK_SLOTS="${ck_slots[*]:0:CK_NNODES}"
CK_NODE_RANK=${CK_NODE_RANK:-0}
CK_NODE_NAME=${ck_nodes[CK_NODE_RANK]}
CK_HEAD_ADDR=${CK_HEAD_ADDR:-${ck_nodes[0]}}
CK_PORT=${CK_PORT:-20000}
CK_JOB_ID=${CK_JOB_ID:-0}
CK_RESTART_COUNT=${CK_RESTART_COUNT:-0}
# TMPDIR may be that of the submitting shell, and name a folder that only its machine has.
[[ -d ${TMPDIR:-} && -w ${TMPDIR:-} ]] || TMPDIR=/tmp
CK_TMP=$(mktemp -d "$TMPDIR/clusterkit-$CK_JOB_ID-XXXXXX")
trap 'rm -rf "$CK_TMP"' EXIT
export CK_NODES CK_SLOTS CK_NNODES CK_NODE_RANK CK_NODE_NAME CK_HEAD_ADDR CK_PORT CK_JOB_ID
export CK_RESTART_COUNT CK_TMP TMPDIR
export CK_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-}
# Unless told otherwise, the ranks of a node share its cores; each would start a thread on all.
ck_threads=$(($(nproc) / ck_slots[CK_NODE_RANK]))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((ck_threads > 0 ? ck_threads : 1))}

cat >"$CK_TMP"/env_launch.py <<'CK_FILE'
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
    sys.exit(clusterkit_ranks.run(options.command, environments))


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
CK_FILE

cat >"$CK_TMP"/clusterkit_ranks.py <<'CK_FILE'
"""Run the ranks of one node, and end them together: for the launchers of frameworks without one.

The exit code is that of the first local rank that failed, as a shell gives it; which that was is
told by clusterkit_failure.py beside this file. A rank that knows it has only lost another one may
leave a note, `lost-another-RANK` in CK_TMP, with how far the output had come: whoever is to blame
is given time to come first.
"""

import os
import select
import signal
import subprocess
import time
from pathlib import Path

import clusterkit_failure

GRACE_S = 10
OTHERS_TELL_S = 2
"""How long a rank that has lost another one is not blamed, for that one's node to come first."""


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
                if lost_another(rank):
                    end(running.values())
                    time.sleep(OTHERS_TELL_S)
                tell(rank, list(ranks).index(rank), code)
                end(running.values())
                return code
            clusterkit_failure.tell_ended(os.environ["CK_NODE_NAME"], rank)
        code = over(set(running))
        if code is not None:
            end(running.values())
            if code:
                time.sleep(OTHERS_TELL_S)
            return code
        if select.select([ended], [], [], 0.1)[0]:
            os.read(ended, 4096)
    return 0


def lost_another(rank):
    return Path(os.environ["CK_TMP"], f"lost-another-{rank}").exists()


def output_until_lost(rank):
    """Return how far the output had come: what others say who fail next is not the rank's own."""
    output = os.fstat(2)
    notes = Path(os.environ["CK_TMP"]).glob("lost-another-*")
    others = (note for note in notes if note.name != f"lost-another-{rank}")
    sizes = [int(text) for note in others if (text := note.read_text())]
    return {"inode": output.st_ino, "size": min([output.st_size, *sizes])}


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
CK_FILE

cat >"$CK_TMP"/clusterkit_failure.py <<'CK_FILE'
"""Name the first rank of a job to fail, in the file CK_FAILURE, where that is set.

And the first one to end well, in a file beside it: whoever waits for it then fails in its place.
"""

import json
import os
from contextlib import suppress
from pathlib import Path


def tell(node, rank, exit_code, **more):
    """Write the file, unless there is one; `exit_code` is as a shell gives it."""
    tell_first("", {"node": node, "rank": rank, "exit_code": exit_code, **more})


def tell_ended(node, rank):
    """Say that a rank has ended with exit code 0, unless another was first."""
    tell_first(".ended", {"node": node, "rank": rank})


def tell_first(suffix, document):
    path = os.environ.get("CK_FAILURE")
    if not path:
        return
    rank = document["rank"]
    draft = Path(f"{path}.{rank}.{os.getpid()}")  # a rank and who started it may both tell
    with suppress(OSError):  # unlike a rename, a link replaces nothing: the first rank counts
        try:
            draft.touch(mode=0o600)  # as all of a run, whatever the umask
            draft.write_text(json.dumps(document), encoding="utf-8")
            Path(path + suffix).hardlink_to(draft)
        finally:
            draft.unlink()
CK_FILE

[[ -n ${CK_WORKDIR:-} ]] || CK_WORKDIR='/home/ada/my project'
cd "$CK_WORKDIR"
ck_command=(
  python3
  -u
  "${CK_TMP}"/env_launch.py
  --processes=4
  python3
  -u
  train.py
  --text
  'it'"'"'s "a" $b `c`'
  'new
line'
  ''
  '--glob=*'
  'ü ✓'
  'a,b;c&d|e'
)
export NCCL_SOCKET_IFNAME=lo
export GLOO_SOCKET_IFNAME=lo
# In the background, so that a signal is passed on at once and not after the command has ended.
"${ck_command[@]}" <&0 &
ck_child=$!
trap 'kill -TERM "$ck_child" 2>/dev/null || true' TERM INT
ck_status=0
wait "$ck_child" || ck_status=$?
while kill -0 "$ck_child" 2>/dev/null; do
  ck_status=0
  wait "$ck_child" || ck_status=$?
done
exit "$ck_status"
