#!/usr/bin/env bash
# train: what one node runs (tensorflow). Rendered by clusterkit 0.1.0.
# Inside an allocation everything it needs is in the environment. By hand, on each host:
#   CK_NODES="host1 host2" CK_NODE_RANK=0 bash node.sh     # and CK_NODE_RANK=1 on host2
# On several hosts also, the same on each:  export CK_TOKEN=...     # made by `openssl rand -hex 16`
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
# By this the nodes know who is of this job: whoever else comes could run programs as this user.
CK_TOKEN=${CK_TOKEN:-}
if ((CK_NNODES == 1 && ${#CK_TOKEN} == 0)); then
  CK_TOKEN=$(od -An -vtx1 -N16 /dev/urandom | tr -d ' \n')
elif ((${#CK_TOKEN} < 16)); then
  echo "clusterkit: error: $CK_NODE_NAME: CK_TOKEN is not set, or has fewer than 16 characters" >&2
  echo "  hint: the nodes know each other by it, so it is the same on all of them:" >&2
  echo "    export CK_TOKEN=\"\$(openssl rand -hex 16)\"  # once; on the others, what it is there" >&2
  exit 2
fi
export CK_TOKEN
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

cat >"$CK_TMP"/tensorflow_launch.py <<'CK_FILE'
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
        "--processes", type=int, help="one a slot, so many on all nodes together; else one a node"
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
    """Tell whether the job goes on until a process of this role has ended."""
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
CK_FILE

cat >"$CK_TMP"/tensorflow_meeting.py <<'CK_FILE'
"""Let the nodes of a job meet at the head's port: who listens where, and when all is over.

Each node sends its ports, free ones that it holds until all are known, and gets the addresses of
all ranks. Later each says when it is `idle`, with nothing to wait for, and hears when it is `over`:
when all are, or have `left` with all done. Where one goes without a word, all others are let go.
clusterkit_peers.py sees to it that nobody else takes part.
"""

import os
import signal
import socket
import sys
import threading
from contextlib import ExitStack, suppress

import clusterkit_peers

TIMEOUT_S = 300
REACH = 200
"""How far above the job's own port a free one is looked for."""
MOST_PORTS = 4096
"""How many processes a node may have."""


class Meeting:
    """This node's line to the head."""

    def __init__(self, count):
        nodes, port = os.environ["CK_NODES"].split(), int(os.environ["CK_PORT"])
        member = clusterkit_peers.member_of_job("tensorflow")
        self.rank = int(os.environ["CK_NODE_RANK"])
        self.idle = self.ended = self.success = False
        self.told = threading.Event()
        self.held = ExitStack()
        try:
            if self.rank == 0:
                Head(nodes, port, member)
            ports = [self.hold_free_port(port + 1) for _ in range(count)]
            self.line = clusterkit_peers.connect_within(
                TIMEOUT_S, (os.environ["CK_HEAD_ADDR"], port), member
            )
            self.line.send({"address": own_address(), "ports": ports})
            self.addresses = self.line.receive(TIMEOUT_S + 10).get("addresses")
        except OSError as error:
            sys.exit(f"clusterkit: not all nodes of the job came to {nodes[0]}: {error}")
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        """Note what the head says: that all is over, or nothing, as it or another node has gone."""
        with suppress(OSError):
            self.success = "over" in self.line.receive()
        self.told.set()

    def hold_free_port(self, first):
        """Return a port from `first` on that is nobody's, and ours until all ports are known."""
        for port in range(first, min(first + REACH, 65536)):
            # Not listening: whoever comes too early shall be refused, and try again.
            holder = socket.socket()
            try:
                holder.bind(("", port))
            except OSError:
                holder.close()
            else:
                self.held.enter_context(holder)
                return port
        sys.exit(f"clusterkit: no free port in {first}-{first + REACH - 1} of this node")

    def release_ports(self):
        """Let go of the ports, for those who are to listen there."""
        self.held.close()

    def over(self, idle):
        """Return how this node is to end, where it is to end now."""
        if idle and not self.idle:
            self.idle = True
            send(self.line, {"idle": True})
        return self.verdict() if self.told.is_set() else None

    def verdict(self):
        """Wait for what the head says; return how this node is to end."""
        self.ended = True
        self.told.wait()
        if self.success:
            return 0
        print("clusterkit: another node of the job has failed", file=sys.stderr)
        return 1

    def leave(self, code):
        """Return the exit code of this node, whose processes have ended with `code`."""
        if code or self.ended:
            return code
        if self.rank:
            send(self.line, {"left": True})
            return 0
        # The head's own process has to last until all others know.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        send(self.line, {"idle": True})
        return self.verdict()


class Head:
    """What the first node does for all; the end of their lines says that something went wrong."""

    def __init__(self, nodes, port, member):
        self.nodes = nodes
        self.addresses = {}
        self.lines = {}
        self.busy = set(range(len(nodes)))
        self.lost = False
        self.changed = threading.Condition()
        # The nodes of a local job have loopback addresses of their own.
        address = os.environ.get("CK_NODE_ADDR", ""), port
        self.listener = clusterkit_peers.Listener(address, member, self.serve)
        threading.Thread(target=self.preside, daemon=True).start()

    def serve(self, line):
        """Know a node for as long as it is there."""
        addresses = self.addresses_of(line.rank, line.receive(clusterkit_peers.MESSAGE_S))
        with self.changed:
            if line.rank in self.addresses:
                return
            self.addresses[line.rank], self.lines[line.rank] = addresses, line
            self.changed.notify_all()
        left = False
        for message in line.messages():
            left = "left" in message
            with self.changed:
                self.busy.discard(line.rank)
                self.changed.notify_all()
            if left:
                break
        with self.changed:
            del self.lines[line.rank]
            self.lost = self.lost or not left
            self.changed.notify_all()

    def addresses_of(self, rank, told):
        """Return the addresses of a node's processes."""
        host, ports = clusterkit_peers.text(told, "address", 64), told.get("ports")
        if not isinstance(ports, list) or len(ports) > MOST_PORTS:
            raise clusterkit_peers.PeerError("sends no list of ports")
        if not all(type(port) is int and 0 < port < 65536 for port in ports):
            raise clusterkit_peers.PeerError("sends what is no port")
        host = address_of(rank, self.nodes, host)
        return [f"{host}:{port}" for port in ports]

    def preside(self):
        """Tell all nodes where the others are, and when all is over."""
        with self.changed:
            came = self.changed.wait_for(lambda: self.lost or self.came(), TIMEOUT_S)
            if not came:
                missing = [name for rank, name in enumerate(self.nodes) if rank not in self.lines]
                why = f" ({self.listener.refused})" if self.listener.refused else ""
                print(f"clusterkit: no word from {' '.join(missing)}{why}", file=sys.stderr)
            self.lost = self.lost or not came
            self.listener.close()
        addresses = [address for rank in sorted(self.addresses) for address in self.addresses[rank]]
        self.tell({"addresses": addresses})
        with self.changed:
            self.changed.wait_for(lambda: self.lost or not self.busy)
        self.tell({"over": True})

    def came(self):
        """Tell whether all nodes are there."""
        return len(self.addresses) == len(self.nodes)

    def tell(self, message):
        """Tell all nodes something, this one last, which may end then; or that all is lost."""
        for _, line in sorted(self.lines.items(), reverse=True):
            if self.lost:
                line.end()
            else:
                send(line, message)


def own_address():
    """Return the address of this node on its way to the head."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((os.environ["CK_HEAD_ADDR"], 9))  # of UDP: nothing is sent
        return probe.getsockname()[0]
    return os.environ["CK_NODE_NAME"]


def address_of(rank, nodes, own):
    """Return how to reach a node: by its name where that leads to the address that it has."""
    if rank == 0:
        own = os.environ["CK_HEAD_ADDR"]
    try:
        here, there = (
            {info[4][0] for info in socket.getaddrinfo(host, None)} for host in (nodes[rank], own)
        )
    except OSError:
        return own
    return nodes[rank] if here & there else own


def send(line, message):
    """Send a message; nothing where the other side has gone, which whoever reads notices."""
    with suppress(OSError):
        line.send(message)
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

cat >"$CK_TMP"/clusterkit_peers.py <<'CK_FILE'
(clusterkit/core/peers.py)
CK_FILE

[[ -n ${CK_WORKDIR:-} ]] || CK_WORKDIR='/home/ada/my project'
cd "$CK_WORKDIR"
ck_command=(
  python3
  -u
  "${CK_TMP}"/tensorflow_launch.py
  --processes=4
  --chief=1
  --ps=2
  python3
  -u
  train.py
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
