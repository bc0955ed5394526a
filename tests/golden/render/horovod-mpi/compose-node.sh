#!/usr/bin/env bash
# train: what one node runs (horovod). Rendered by clusterkit 0.1.0.
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

cat >"$CK_TMP"/horovod_launch.py <<'CK_FILE'
"""Start the Horovod ranks of one node on gloo, without SSH: launch.py --processes N COMMAND...

Runs once on every node of a job, with clusterkit's CK_* variables in its environment. The first
node serves Horovod's own rendezvous; every node starts its local ranks with the HOROVOD_*
variables that `horovodrun` would have set (horovod/runner/gloo_run.py, 0.28.1). Needs nothing
but horovod, and the files beside it.
"""

import argparse
import os
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

    try:
        server = serve_rendezvous(assignments) if node == nodes[0] else horovod_rendezvous.Door()
    except PeerError as error:
        sys.exit(f"clusterkit: no rendezvous: {error}")
    environments = {
        slot.rank: rank_environment(slot, server.server_port)
        for slot in assignments
        if slot.hostname == node
    }
    sys.exit(clusterkit_ranks.run(options.command, environments))


def serve_rendezvous(assignments):
    server = horovod_rendezvous.Rendezvous(RendezvousHandler)
    server.init(assignments)
    return server


def rank_environment(slot, port):
    environment = {
        **os.environ,
        **create_slot_env_vars(slot),
        **horovod_rendezvous.variables(port),
    }
    if environment.get("CK_FAILURE"):
        # There is a sitecustomize.py, which says what for.
        before = environment["CK_PYTHONPATH"] = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (environment["CK_TMP"], before)))
    return environment


if __name__ == "__main__":
    main()
CK_FILE

cat >"$CK_TMP"/horovod_rendezvous.py <<'CK_FILE'
"""Serve Horovod's rendezvous to the ranks of this job, and to nobody else.

Horovod's server does what anybody who reaches it says, and unpickles some of it
(horovod/runner/elastic/rendezvous.py, 0.28.1). So it listens on 127.0.0.1 of the first node alone,
and so do doors on the other nodes, which hand the requests of their ranks to the first node over
clusterkit_peers.py. Both take connections of this user only.
"""

import base64
import http.client
import os
import re
import socket
import struct
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import clusterkit_peers
from horovod.runner.http.http_server import RendezvousHTTPServer

HERE = "127.0.0.1"
START_S = 300
REQUEST_S = 10
LONGEST = 1 << 20
"""Bytes of what one rank has the others know: addresses."""
METHODS = ("GET", "PUT", "DELETE")
PATH = re.compile(r"/[\w.:~%-]{1,200}/[\w.:~%-]{1,200}")


class OwnUser:
    """Of a server: turn away the connections of other users of this machine."""

    daemon_threads = True
    request_queue_size = 128

    def verify_request(self, request, client_address):
        """Tell whether a connection is one of this user."""
        del client_address
        request.settimeout(REQUEST_S)
        return user_of(request) == os.geteuid()


def user_of(connection):
    """Return the user id that the other end of a connection within this machine belongs to."""
    theirs, ours = (name_of(end) for end in (connection.getpeername(), connection.getsockname()))
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == [theirs, ours]:
            return int(fields[7])
    return None


def name_of(end):
    """Return an address and a port as proc(5) writes them."""
    return "{:08X}:{:04X}".format(*struct.unpack("=I", socket.inet_aton(end[0])), end[1])


class Rendezvous(OwnUser, RendezvousHTTPServer):
    """Horovod's rendezvous server, on the first node."""

    def __init__(self, handler):
        super().__init__((HERE, 0), handler, 0)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        if len(os.environ["CK_NODES"].split()) > 1:
            listen(int(os.environ["CK_PORT"]), "horovod-rendezvous", self.serve_node)

    def serve_node(self, connection):
        """Answer what the ranks of another node ask for, one request after the other."""
        for asked in connection.messages():
            connection.send(self.answer(asked))

    def answer(self, asked):
        """Do what a rank asks for, and return what it is to be told."""
        method, path = (clusterkit_peers.text(asked, name) for name in ("method", "path"))
        if method not in METHODS or not PATH.fullmatch(path):
            raise clusterkit_peers.PeerError("asks for what no rank asks for")
        body = base64.b64decode(clusterkit_peers.text(asked, "body", 2 * LONGEST))
        ours = http.client.HTTPConnection(HERE, self.server_port)
        ours.request(method, path, body if method == "PUT" else None)
        response = ours.getresponse()  # may come when all ranks have asked
        told = base64.b64encode(response.read()).decode()
        return {"status": response.status, "body": told}


def listen(port, purpose, serve):
    """Return a listener for the other nodes."""
    member = clusterkit_peers.member_of_job(purpose)
    ranks = 64 + 2 * max(int(count) for count in os.environ["CK_SLOTS"].split())
    try:
        return clusterkit_peers.Listener(("", port), member, serve, of_rank=ranks)
    except OSError as error:
        sys.exit(f"clusterkit: error: port {port} of the first node: {error.strerror}")


class Door(OwnUser, ThreadingHTTPServer):
    """What the ranks of another node find in place of the rendezvous server."""

    def __init__(self):
        self.head = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"])
        self.member = clusterkit_peers.member_of_job("horovod-rendezvous")
        # As many as requests at once; each is used again.
        self.connections = [clusterkit_peers.connect_within(START_S, self.head, self.member)]
        super().__init__((HERE, 0), Request)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def ask(self, method, path, body):
        """Have the first node answer a request; return status and body."""
        question = {"method": method, "path": path, "body": base64.b64encode(body).decode()}
        try:
            connection = self.connections.pop()
        except IndexError:
            connection = clusterkit_peers.connect(self.head, self.member, timeout_s=REQUEST_S)
        try:
            connection.send(question)
            answer = connection.receive()
        except OSError:
            connection.close()
            raise
        self.connections.append(connection)
        told = base64.b64decode(clusterkit_peers.text(answer, "body", 2 * LONGEST))
        return clusterkit_peers.whole(answer, "status", 200, 599), told


class Request(BaseHTTPRequestHandler):
    """A request of a rank of this node."""

    server: "Door"

    def answer(self):
        """Answer as the first node does."""
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= LONGEST:
            self.send_error(http.client.REQUEST_ENTITY_TOO_LARGE)
            return
        try:
            status, body = self.server.ask(self.command, self.path, self.rfile.read(length))
        except OSError as error:
            print(f"clusterkit: Horovod's rendezvous: {error}", file=sys.stderr, flush=True)
            status, body = http.client.BAD_GATEWAY, b""
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    do_GET = do_PUT = do_DELETE = answer  # noqa: N815

    def log_message(self, *_):
        """Say nothing of each request."""


def variables(port):
    """Return what tells the ranks of this node where their rendezvous is."""
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": HERE,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": os.environ.get(
            "HOROVOD_GLOO_IFACE", os.environ.get("GLOO_SOCKET_IFNAME", "")
        ),
    }
CK_FILE

cat >"$CK_TMP"/clusterkit_peers.py <<'CK_FILE'
(clusterkit/core/peers.py)
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

cat >"$CK_TMP"/sitecustomize.py <<'CK_FILE'
"""Tell of an exception that ends a Horovod rank; any Python loads this file first.

When a script raises, Horovod's own exit handler ends the other ranks before this one, so that which
process ends first says nothing. This file is on PYTHONPATH for the rank alone; another file of its
name, a site's own, is loaded as well.
"""

import os
import sys
from pathlib import Path

import clusterkit_failure


def tell(kind, value, trace):
    if kind.__name__ == "HorovodInternalError":
        # It has lost another rank, whose words end here at the latest.
        note = Path(os.environ["CK_TMP"], f"lost-another-{os.environ['HOROVOD_RANK']}")
        note.write_text(str(os.fstat(2).st_size))
        report(kind, value, trace)
        return
    report(kind, value, trace)
    output = os.fstat(2)
    clusterkit_failure.tell(
        os.environ["CK_NODE_NAME"],
        int(os.environ["HOROVOD_RANK"]),
        1,
        local_rank=int(os.environ["HOROVOD_LOCAL_RANK"]),
        message=f"{kind.__name__}: {value}",
        log={"inode": output.st_ino, "size": output.st_size},
    )


report = sys.excepthook
sys.excepthook = tell

before = os.environ.pop("CK_PYTHONPATH", "")
os.environ["PYTHONPATH"] = before
if not before:
    del os.environ["PYTHONPATH"]
here = str(Path(__file__).parent)
sys.path = [entry for entry in sys.path if entry != here]
ours = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # noqa: F401
except ImportError:
    sys.modules["sitecustomize"] = ours
CK_FILE

[[ -n ${CK_WORKDIR:-} ]] || CK_WORKDIR='/home/ada/my project'
cd "$CK_WORKDIR"
ck_command=(
  python3
  -u
  "${CK_TMP}"/horovod_launch.py
  --processes=4
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
