#!/bin/sh
# Starts one rank for DeepSpeed's launcher: rank.sh PYTHON SCRIPT [ARGS...]
# The launcher numbers CUDA_VISIBLE_DEVICES from 0, which on a shared node is another job's GPU
# (deepspeed#1331); the allocation's own list is put back. --local_rank is what the launcher
# itself would have passed (not under `--set deepspeed.no_local_rank=`).
if [ -n "${CK_VISIBLE_DEVICES:-}" ]; then
  CUDA_VISIBLE_DEVICES=$CK_VISIBLE_DEVICES
  export CUDA_VISIBLE_DEVICES
fi
python=$1
script=$2
shift 2
[ -n "${CK_NO_LOCAL_RANK:-}" ] || set -- "--local_rank=$LOCAL_RANK" "$@"
exec "$python" -u "$script" "$@"
