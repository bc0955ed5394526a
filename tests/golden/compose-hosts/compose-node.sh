#!/usr/bin/env bash
# train: what one node runs (torchrun). Rendered by clusterkit 0.1.0.
# Inside an allocation everything it needs is in the environment. By hand, on each host:
#   CK_NODES="host1 host2" CK_NODE_RANK=0 bash node.sh     # and CK_NODE_RANK=1 on host2
# shellcheck disable=SC1003,SC2016,SC2054 # values are literal: so are their dollars, commas, backslashes
set -euo pipefail
# A signal ahead of the time limit (USR1, USR2) is for training scripts that handle it; for all
# the others, launchers included, it must not be deadly. An ignored signal stays ignored in children.
trap '' USR1 USR2
umask u=rwx # whatever others may: the owner can use what is written below

[[ -n ${CK_NODES:-} ]] || CK_NODES='n3 n1'
[[ -n ${CK_SLOTS:-} ]] || CK_SLOTS='4 4'
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
  "${CK_TMP}"/agent.py
  --nnodes="${CK_NNODES}"
  --node-rank="${CK_NODE_RANK}"
  --master-addr="${CK_HEAD_ADDR}"
  --master-port="${CK_PORT}"
  --nproc-per-node=4
  train.py
)
export A='b $c'
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
