#!/usr/bin/env bash
# train: what one node runs (torchrun). Rendered by clusterkit 0.1.0.
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
[[ -n ${CK_SLOTS:-} ]] || CK_SLOTS='4 4 4 4'
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

# Gloo takes the interface of the host's own name, often the wrong one (127.0.1.1): name the one
# that has the head's address, or leads to it.
ck_interface() {
  local addr dev
  addr=$(getent ahostsv4 "$CK_HEAD_ADDR" | awk 'NR == 1 { print $1 }')
  dev=$(ip -4 -o addr show | awk -v addr="$addr" '{ split($4, a, "/"); if (a[1] == addr) print $2 }')
  [[ -n $dev ]] || dev=$(ip -4 route get "$addr" | sed -n 's/.* dev \([^ ]*\).*/\1/p')
  printf '%s\n' "${dev%%$'\n'*}"
}
if [[ -z ${GLOO_SOCKET_IFNAME:-} ]] && ck_dev=$(ck_interface 2>/dev/null) && [[ -n $ck_dev ]]; then
  export GLOO_SOCKET_IFNAME=$ck_dev
fi

cat >"$CK_TMP"/agent.py <<'CK_FILE'
"""torchrun, with three additions: agent.py TORCHRUN_ARGUMENTS...

A store that outlives its agents. The agent of the first node serves the key-value store through
which agents leave together. It may be gone before another has read the last key, which then reports
a lost connection with two screens of C++ frames, after a run that succeeded (pytorch#69520). A
multi-tenant store is shared within a process: held here as well, it is there until the others have
left. It listens at the head's own address, and not at all that the machine has.

A word on which rank failed first, by clusterkit_failure.py beside this file. torchrun itself exits
with 1, whatever its rank died of. And on the first that ended well, which others may wait for.

A folder for its error files that goes when the job ends. torchrun leaves one in /tmp for each job.
"""

import os
import socket
import sys
import time
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import clusterkit_failure
from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

BACKLOG = 4096
OTHERS_LEAVE_S = 1
KEEPS_LOGS = {"PET_LOG_DIR", "PET_REDIRECTS", "PET_TEE"}
"""The options of torchrun, as variables, by which its user wants that folder."""

DECIDED = ("PET_STANDALONE", "PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT")
"""Options of torchrun by which it would load what anybody writes to its port (c10d)."""


def hold_store():
    sock = listen()
    return TCPStore(
        os.environ["CK_HEAD_ADDR"],
        int(os.environ["CK_PORT"]),
        int(os.environ["CK_NNODES"]),
        is_master=True,
        timeout=timedelta(minutes=15),
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=None if sock is None else sock.detach(),
    )


def listen():
    """Return a socket at the head's address alone; None where all addresses are needed.

    A name may lead to another address on other nodes. Whoever reaches a TCPStore may write to it.
    """
    head, port = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"])
    with suppress(OSError, ValueError):  # TCPStore itself then tells what is wrong with the port
        family = socket.AF_INET6 if ip_address(head).version == 6 else socket.AF_INET
        return socket.create_server((head, port), family=family, backlog=BACKLOG)
    return None


def serves_store():
    # With c10d, whichever agent comes first serves it, and no port is among the arguments.
    return f"--master-port={os.environ['CK_PORT']}" in sys.argv and is_head()


def is_head():
    return os.environ["CK_NODE_RANK"] == "0"


def tell(error):
    rank, failure = error.get_first_failure()
    # Only scripts decorated with @record write an error file.
    told = Path(failure.error_file).is_file()
    said = failure.error_file_data.get("message") if told else None
    code = failure.exitcode
    clusterkit_failure.tell(
        os.environ["CK_NODE_NAME"],
        rank,
        code if code >= 0 else 128 - code,
        local_rank=failure.local_rank,
        message=said.get("message") if isinstance(said, dict) else said,
    )


def tell_of_ends(watched=SubprocessContext):
    """Have each look of the agent at its ranks note which have ended by themselves, and well."""
    look: Any = getattr(watched, "_poll", None)  # a later torch may call it otherwise

    def looked(ranks):
        running: set[int] = getattr(ranks, "_running_local_ranks", set())
        before = set(running)
        result = look(ranks)
        for local_rank in sorted(before - running):
            if ranks.subprocess_handlers[local_rank].proc.returncode == 0:
                rank = int(ranks.envs[local_rank]["RANK"])
                clusterkit_failure.tell_ended(os.environ["CK_NODE_NAME"], rank)
        return result

    if look is not None:
        watched._poll = looked  # noqa: SLF001 - nothing else tells


def clean_up_later():
    if not KEEPS_LOGS & os.environ.keys():
        os.environ["PET_LOG_DIR"] = str(Path(os.environ["CK_TMP"], "torchelastic"))


def heed_no_other_rendezvous():
    for name in DECIDED:
        if os.environ.pop(name, None) is not None:
            print(f"clusterkit: {name} gives way to the job's own rendezvous", file=sys.stderr)


if __name__ == "__main__":
    heed_no_other_rendezvous()
    clean_up_later()
    tell_of_ends()
    store = hold_store() if serves_store() else None
    try:
        main()
    except ChildFailedError as error:
        tell(error)
        raise
    if store is not None and os.environ["CK_NNODES"] != "1":
        time.sleep(OTHERS_LEAVE_S)
CK_FILE

cat >"$CK_TMP"/clusterkit_store.py <<'CK_FILE'
"""Where the agents of an elastic job keep what they share: on the first node, for this job alone.

torch's c10d rendezvous keeps a pickle in a TCPStore, which lets whoever reaches its port list its
keys and write them: what strangers wrote there ran as the user of the job. Here agents speak the
protocol of clusterkit_peers.py, which nobody takes part in who does not know the job's token.
"""

import os
import threading
import time
from base64 import b64decode, b64encode
from datetime import timedelta

import clusterkit_peers
from torch.distributed import DistStoreError
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend

ANSWER_S = 60
LOOK_S = 0.05
LONGEST_KEY = 1 << 10
LONGEST_VALUE = 1 << 20
MOST_KEYS = 1 << 20


class Server:
    """The store itself, on the first node."""

    def __init__(self, member):
        self.values = {}
        self.lock = threading.Lock()
        # The nodes of a local job have loopback addresses of their own.
        address = os.environ.get("CK_NODE_ADDR", ""), int(os.environ["CK_PORT"])
        self.listener = clusterkit_peers.Listener(address, member, self.serve)

    def serve(self, line):
        """Do what a node asks for as long as it is there."""
        for message in line.messages():
            line.send({"value": self.answer(message)})

    def answer(self, message):
        """Read, add to or replace a value; return what it is then, None where there is none."""
        key = clusterkit_peers.text(message, "key", LONGEST_KEY)
        with self.lock:
            now = self.values.get(key)
            if "add" in message:
                more = clusterkit_peers.whole(message, "add", -(1 << 31), 1 << 31)
                self.values[key] = str(int(now or 0) + more)
            elif "new" in message and message.get("old", now) == now:
                if len(self.values) >= MOST_KEYS:
                    raise clusterkit_peers.PeerError("has set too many keys")
                self.values[key] = clusterkit_peers.text(message, "new", LONGEST_VALUE)
            return self.values.get(key)


class Line:
    """The connection of this agent to the store, for all of its threads."""

    def __init__(self, member, address, within_s):
        self.line = clusterkit_peers.connect_within(within_s, address, member)
        self.lock = threading.Lock()

    def ask(self, key, **what):
        """Return what the store answers.

        Raises:
            RendezvousConnectionError: the first node has gone.
        """
        with self.lock:
            try:
                self.line.send({"key": key, **what})
                return self.line.receive(ANSWER_S)["value"]
            except (OSError, KeyError) as error:
                self.line.end()
                raise RendezvousConnectionError(f"the first node {error}") from error


class Store:
    """What torchrun's agent calls of a store, with keys of its own."""

    def __init__(self, line, prefix):
        self.line, self.prefix = line, prefix
        self.timeout = timedelta(minutes=5)

    def set_timeout(self, timeout):
        """Let `get` and `wait` take so long."""
        self.timeout = timeout

    def set(self, key, value):
        """Write a value: text, or its bytes."""
        text = value if isinstance(value, str) else value.decode()
        self.line.ask(self.prefix + key, new=text)

    def add(self, key, amount):
        """Add to a number; return it."""
        return int(self.line.ask(self.prefix + key, add=amount))

    def get(self, key, timeout=None):
        """Return a value as soon as there is one."""
        timeout = timeout or self.timeout
        deadline = time.monotonic() + timeout.total_seconds()
        while (value := self.line.ask(self.prefix + key)) is None:
            if time.monotonic() > deadline:
                raise DistStoreError(f"nobody has set {key} within {timeout}")
            time.sleep(LOOK_S)
        return value.encode()

    def wait(self, keys, timeout=None):
        """Wait until all keys are there."""
        for key in keys:
            self.get(key, timeout)

    def multi_get(self, keys):
        """Return several values."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys, values):
        """Write several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)


class Backend(RendezvousBackend):
    """Keeps who trains together: torch's own pickle of it, and as its version the very text."""

    def __init__(self, line, name, key):
        self.line, self.key, self._name = line, key, name

    @property
    def name(self):
        """Return the name under which the registry has it."""
        return self._name

    def get_state(self):
        """Return state and version, None where there is none yet."""
        kept = self.line.ask(self.key)
        return None if kept is None else (b64decode(kept), kept)

    def set_state(self, state, token=None):
        """Replace the state of that version; return state, version, and whether that was done."""
        new = b64encode(state).decode()
        kept = self.line.ask(self.key, old=token, new=new)
        return None if kept is None else (b64decode(kept), kept, kept == new)
CK_FILE

cat >"$CK_TMP"/elastic.py <<'CK_FILE'
"""torchrun whose job may lose nodes: elastic.py TORCHRUN_ARGUMENTS, with agent.py beside it.

The rendezvous `clusterkit` is torch's own, but for four things. Its state is in a store that only
nodes of the job reach (clusterkit_store.py). A lost node makes the others begin a new round at
once: torch drops its entry after 15 s without a sign of life, and then waits for ranks to fail,
which with a silent network takes half an hour. Ranks follow CK_NODE_RANK, so the first node, which
serves the store, has rank 0 in every round. And the log of the first node tells who trains; so does
the file CK_ROUNDS, where that is set, a JSON line for each round.
"""

import dataclasses
import json
import os
import runpy
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

# Ranks that share the agents' store find each other by how often their own agent has restarted
# them, and agents count differently: only the one whose rank died counts that.
os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")

import clusterkit_peers
import clusterkit_store
from torch.distributed.elastic.rendezvous import RendezvousTimeoutError
from torch.distributed.elastic.rendezvous.api import rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
)

BACKEND = "clusterkit"
START_S = 600
OTHERS_LEAVE_S = 1
GATHER_AGAIN_S = 90
"""Long enough for ranks that have to be killed (30 s), and for the last call."""
LAST_CALL_S = 20
"""How long more nodes than the fewest are waited for; all of them are not waited for."""


class Handler(DynamicRendezvousHandler):
    """The rendezvous as one agent sees it."""

    members: frozenset[Any] = frozenset()
    server: Any = None

    def get_backend(self):
        """Return the name under which the registry has it."""
        return BACKEND

    def _get_store(self):
        """Return the store for the agents of one round."""
        return clusterkit_store.Store(self._store, f"{self._state_holder.state.round}/")

    def next_rendezvous(self):
        """Join the next round; give up where too few nodes are left."""
        try:
            info = super().next_rendezvous()
        except RendezvousTimeoutError:
            fewest = self.settings.min_nodes
            sys.exit(
                f"clusterkit: fewer than {fewest} nodes are left of {node_names(self.members)}"
            )
        state = self._state_holder.state
        self.members = frozenset(state.participants)
        gathered = timedelta(seconds=GATHER_AGAIN_S)
        self._settings = dataclasses.replace(
            self._settings,
            timeout=RendezvousTimeout(join=gathered, last_call=self._settings.timeout.last_call),
        )
        if is_head():
            tell_round(state.round, node_names(self.members).split())
        return info

    def num_nodes_waiting(self):
        """Return how many nodes make a new round necessary; the lost ones do as well."""
        waiting = super().num_nodes_waiting()
        state = self._state_holder.state
        gone = self.members - state.participants.keys() - state.wait_list
        if not gone or state.closed:  # closed: the others have ended, and leave
            return waiting
        if is_head():
            print(f"clusterkit: lost {node_names(gone)}", flush=True)
        return waiting or len(gone)


def is_head():
    return os.environ["CK_NODE_RANK"] == "0"


def place():
    """Return an address that sorts as the node's rank does; only that of rank 0 is ever called."""
    if is_head():
        return os.environ["CK_HEAD_ADDR"]
    return f"~{int(os.environ['CK_NODE_RANK']):06}~{os.environ['CK_NODE_NAME']}"


def node_names(nodes):
    head = os.environ["CK_NODES"].split()[0]
    return " ".join(
        node.addr.rpartition("~")[2] if node.addr.startswith("~") else head
        for node in sorted(nodes)
    )


def tell_round(number, names):
    print(f"clusterkit: round {number}: {len(names)} nodes: {' '.join(names)}", flush=True)
    if os.environ.get("CK_ROUNDS"):
        # Inside an image the run folder may not be there.
        with suppress(OSError), Path(os.environ["CK_ROUNDS"]).open("a", encoding="utf-8") as out:
            out.write(json.dumps({"nodes": names}) + "\n")


def create_handler(parameters):
    member = clusterkit_peers.member_of_job("torchrun")
    head = os.environ["CK_HEAD_ADDR"], int(os.environ["CK_PORT"])
    try:
        # To outlive this agent's part, as in agent.py.
        Handler.server = clusterkit_store.Server(member) if is_head() else None
        start_s = parameters.get_as_int("join_timeout", START_S)
        line: Any = clusterkit_store.Line(member, head, start_s)
    except OSError as error:
        sys.exit(f"clusterkit: error: {os.environ['CK_NODE_NAME']}: {error}")
    timeouts = RendezvousTimeout(
        join=timedelta(seconds=start_s),
        last_call=timedelta(seconds=parameters.get_as_int("last_call_timeout", LAST_CALL_S)),
    )
    return Handler.from_backend(
        parameters.run_id,
        line,
        clusterkit_store.Backend(line, BACKEND, "state"),
        parameters.min_nodes,
        parameters.max_nodes,
        place(),
        timeouts,
        parameters.get_as_int("keep_alive_interval", 5),
        parameters.get_as_int("keep_alive_max_attempt", 3),
    )


if __name__ == "__main__":
    rendezvous_handler_registry.register(BACKEND, create_handler)
    runpy.run_path(str(Path(__file__).with_name("agent.py")), run_name="__main__")
    if is_head():
        time.sleep(OTHERS_LEAVE_S)
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
  "${CK_TMP}"/elastic.py
  --nnodes=2:"${CK_NNODES}"
  --rdzv-backend=clusterkit
  --rdzv-endpoint="${CK_HEAD_ADDR}":"${CK_PORT}"
  --rdzv-id="${CK_JOB_ID}"-"${CK_RESTART_COUNT}"
  --nproc-per-node=4
  --max-restarts=3
  train.py
)
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
