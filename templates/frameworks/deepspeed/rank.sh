#!/bin/sh
# Starts one rank for DeepSpeed's launcher: rank.sh N WORDS... [ARGS...], N words before the arguments
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
words=$1
shift
if [ -z "${CK_NO_LOCAL_RANK:-}" ]; then # behind those words, whatever follows
  place=0
  for word in "$@"; do
    [ "$place" != 0 ] || set --
    set -- "$@" "$word"
    place=$((place + 1))
    [ "$place" != "$words" ] || set -- "$@" "--local_rank=$LOCAL_RANK"
  done
fi
[ -n "${CK_FAILURE:-}" ] || exec "$@"
# The launcher looks at its ranks once a second, so only this shell can tell which failed first:
# who links its word to the name of all is first, as a link replaces nothing.
"$@" <&0 &
child=$!
signalled=yes status=127
trap 'signalled=yes; kill -TERM "$child" 2>/dev/null || true' TERM INT
while [ -n "$signalled" ]; do # a signal ends `wait`, and the rank's own status is asked for again
  signalled='' again=0
  wait "$child" || again=$?
  # Of a child that it has told of already a shell knows no more: dash says 127, and bash -1.
  [ "$again" = 127 ] || [ "$again" = -1 ] || status=$again
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
