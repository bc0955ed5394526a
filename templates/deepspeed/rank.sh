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
exec "$python" -u "$script" "$@"
