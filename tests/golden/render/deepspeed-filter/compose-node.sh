#!/usr/bin/env bash
# train: what one node runs (deepspeed). Rendered by clusterkit 0.1.0.
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

cat >"$CK_TMP"/rank.sh <<'CK_FILE'
#!/bin/sh
# Starts one rank for DeepSpeed's launcher: rank.sh PYTHON SCRIPT [ARGS...]
# The launcher takes slot numbers for devices, which on a shared node are another job's GPUs
# (deepspeed#1331): here they count in the allocation's own list. Where that is shorter than the
# node has slots, the ranks share all of it. --local_rank is what the launcher itself would have
# passed (not under `--set deepspeed.no_local_rank=`).
if [ -n "${CK_VISIBLE_DEVICES:-}" ]; then
  chosen=
  IFS=,
  for slot in ${CUDA_VISIBLE_DEVICES:-}; do
    place=0 found=
    for device in $CK_VISIBLE_DEVICES; do
      [ "$place" != "$slot" ] || found=$device
      place=$((place + 1))
    done
    if [ -z "$found" ]; then
      chosen=
      break
    fi
    chosen=$chosen${chosen:+,}$found
  done
  unset IFS
  CUDA_VISIBLE_DEVICES=${chosen:-$CK_VISIBLE_DEVICES}
  export CUDA_VISIBLE_DEVICES
fi
python=$1
script=$2
shift 2
[ -n "${CK_NO_LOCAL_RANK:-}" ] || set -- "--local_rank=$LOCAL_RANK" "$@"
set -- "$python" -u "$script" "$@"
[ -n "${CK_FAILURE:-}" ] || exec "$@"
# The launcher looks at its ranks once a second, so only this shell can tell which failed first:
# who links its word to the name of all is first, as a link replaces nothing.
"$@" <&0 &
child=$!
trap 'kill -TERM "$child" 2>/dev/null || true' TERM INT
status=0
wait "$child" || status=$?
while kill -0 "$child" 2>/dev/null; do # a signal came, and has been passed on
  status=0
  wait "$child" || status=$?
done
umask 077 # as all of a run
if [ "$status" != 0 ]; then
  # How far the output had come, so that what others say who fail next is not taken for its own.
  log=$(stat -L -c '{"inode": %i, "size": %s}' /dev/fd/3 3>&2 2>/dev/null) || log=null
  draft=$CK_FAILURE.$RANK
  {
    printf '{"node": "%s", "rank": %d, "local_rank": %d, "exit_code": %d, "log": %s}\n' \
      "$CK_NODE_NAME" "$RANK" "$LOCAL_RANK" "$status" "$log" >"$draft" && ln "$draft" "$CK_FAILURE"
    rm -f "$draft"
  } 2>/dev/null
elif [ ! -e "$CK_FAILURE.ended" ]; then
  draft=$CK_FAILURE.$RANK # who waits for a rank that ended well fails in its place
  {
    printf '{"node": "%s", "rank": %d}\n' "$CK_NODE_NAME" "$RANK" >"$draft" &&
      ln "$draft" "$CK_FAILURE.ended"
    rm -f "$draft"
  } 2>/dev/null
fi
exit "$status"
CK_FILE

for ck_rank in "${!ck_nodes[@]}"; do
  printf '%s slots=%d\n' "${ck_nodes[ck_rank]}" "${ck_slots[ck_rank]}"
done >"$CK_TMP/hostfile"

[[ -n ${CK_WORKDIR:-} ]] || CK_WORKDIR='/home/ada/my project'
cd "$CK_WORKDIR"
ck_command=(
  python3
  -u
  -m
  deepspeed.launcher.runner
  --hostfile="${CK_TMP}"/hostfile
  --no_ssh
  --node_rank="${CK_NODE_RANK}"
  --master_addr="${CK_HEAD_ADDR}"
  --master_port="${CK_PORT}"
  --no_local_rank
  --no_python
  sh
  "${CK_TMP}"/rank.sh
  python3
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
