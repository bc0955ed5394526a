"""Start the Horovod ranks of one node on gloo, without SSH: launch.py --processes N COMMAND...

Runs once on every node of a job, with clusterkit's CK_* variables in its environment. The first
node serves Horovod's own rendezvous; every node starts its local ranks with the HOROVOD_*
variables that `horovodrun` would have set (horovod/runner/gloo_run.py, 0.28.1). Needs nothing
but horovod; ends with the exit code of the first local rank that failed, as a shell gives it, and
says which that was in the file CK_FAILURE, where that is set.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.gloo_run import create_slot_env_vars
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

RENDEZVOUS_TIMEOUT_S = 300
GRACE_S = 10
OTHERS_TELL_S = 2
"""How long a rank that has lost another one is not blamed, for that one's node to come first."""


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
    ranks = {
        slot.rank: subprocess.Popen(options.command, env=rank_environment(slot, head, port))
        for slot in assignments
        if slot.hostname == node
    }
    signal.signal(signal.SIGTERM, lambda *_: end(ranks.values()))
    sys.exit(wait_for(ranks))


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


def wait_for(ranks):
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
                if os.environ.get("CK_FAILURE"):
                    tell(rank, list(ranks).index(rank), code)
                end(running.values())
                return code
        time.sleep(0.1)
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
    document = {
        "node": os.environ["CK_NODE_NAME"],
        "rank": rank,
        "local_rank": local_rank,
        "exit_code": code,
        "log": output_until_lost(rank),
    }
    path = os.environ["CK_FAILURE"]
    draft = Path(f"{path}.{rank}")
    with suppress(OSError):  # unlike a rename, a link replaces nothing: the first rank counts
        draft.write_text(json.dumps(document), encoding="utf-8")
        try:
            Path(path).hardlink_to(draft)
        finally:
            draft.unlink()


def end(ranks):
    for rank in ranks:
        rank.terminate()
    deadline = time.monotonic() + GRACE_S
    for rank in ranks:
        try:
            rank.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()


if __name__ == "__main__":
    main()
