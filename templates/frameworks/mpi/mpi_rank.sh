#!/bin/sh
# Starts one rank under mpirun or srun: rank.sh COMMAND...
# MPI has told it who it is, and it tells torch.distributed. Under mpirun the command of this node
# stands in mpi_command.sh beside this file, and what it prints goes to the log of this node and not
# through MPI to that of the first one.
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMIX_RANK:-$SLURM_PROCID}}}
world=${OMPI_COMM_WORLD_SIZE:-${PMI_SIZE:-${SLURM_STEP_NUM_TASKS:-}}}
local=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-$SLURM_LOCALID}}
local_world=${OMPI_COMM_WORLD_LOCAL_SIZE:-${MPI_LOCALNRANKS:-}}
message='' told_on=$CK_NODE_NAME
if [ -n "${CK_MPI_SHARES:-}" ]; then # srun has started it, with the environment of the first node
  CK_NODE_RANK=$SLURM_NODEID
  CK_NODE_NAME=$(echo "$CK_NODES" | cut -d ' ' -f "$((SLURM_NODEID + 1))")
  local_world=$(echo "$CK_MPI_SHARES" | cut -d ' ' -f "$((SLURM_NODEID + 1))")
  # The first node has all output, and the job's result: it tells of ranks elsewhere too.
  message="on $CK_NODE_NAME, started by srun"
  export CK_NODE_RANK CK_NODE_NAME
else
  # shellcheck disable=SC1091 # written where the job runs
  . "$CK_TMP/mpi_command.sh"
  if (: >>"$CK_MPI_OUTPUT/1" 2>>"$CK_MPI_OUTPUT/2") 2>/dev/null; then
    exec >>"$CK_MPI_OUTPUT/1" 2>>"$CK_MPI_OUTPUT/2"
  fi
fi
if [ -n "${CK_NODE_ADDR:-}" ]; then
  # Several nodes are this one machine, whose name Open MPI gives to what its ranks share.
  export OMPI_MCA_btl_vader_backing_directory="$CK_TMP" OMPI_MCA_btl_sm_backing_directory="$CK_TMP"
fi
RANK=$rank WORLD_SIZE=$world LOCAL_RANK=$local LOCAL_WORLD_SIZE=$local_world
NODE_RANK=$CK_NODE_RANK MASTER_ADDR=$CK_HEAD_ADDR MASTER_PORT=$CK_PORT
JAX_COORDINATOR_ADDRESS=$CK_HEAD_ADDR:$CK_PORT
export RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT
export JAX_COORDINATOR_ADDRESS
if [ -n "${SLURM_JOB_ID:-}" ]; then # as srun with a task for each rank sets them
  SLURM_PROCID=$rank SLURM_LOCALID=$local SLURM_NODEID=$CK_NODE_RANK SLURM_NNODES=$CK_NNODES
  SLURM_NTASKS=$world SLURM_NPROCS=$world SLURM_STEP_NUM_TASKS=$world
  SLURM_NTASKS_PER_NODE=$local_world
  export SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NNODES SLURM_NTASKS SLURM_NPROCS
  export SLURM_STEP_NUM_TASKS SLURM_NTASKS_PER_NODE
fi
if [ -n "${CK_FAILURE:-}" ] && [ -z "${CK_MPI_SHARES:-}" ]; then
  # Its Python tells of itself, by sitecustomize.py; under srun only the first node has that.
  CK_TOLD_AS="$$ $RANK $LOCAL_RANK" PYTHONPATH=$CK_TMP${PYTHONPATH:+:$PYTHONPATH}
  export CK_TOLD_AS PYTHONPATH
fi
# Notices of the time limit are for scripts that handle them. Hydra hands down that they are blocked
# for itself: bits 9 and 11.
trap '' USR1 USR2
blocked=$(sed -n 's/^SigBlk:[[:space:]]*/0x/p' /proc/self/status 2>/dev/null)
if [ $((${blocked:-0} & 0xa00)) != 0 ]; then
  set -- "$CK_MPI_PYTHON" -I -c 'import os, signal, sys
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1, signal.SIGUSR2})
os.execvp(sys.argv[1], sys.argv[1:])' "$@"
fi
"$@" <&0 &
child=$!
signalled=yes status=127
trap 'signalled=yes; kill -TERM "$child" 2>/dev/null || true' TERM INT
while [ -n "$signalled" ]; do # a signal ends `wait`, and the rank's own status is asked for again
  signalled='' again=0
  wait "$child" 2>/dev/null || again=$?
  # Of a child that it has told of already a shell knows no more: dash says 127, and bash -1.
  [ "$again" = 127 ] || [ "$again" = -1 ] || status=$again
done
umask 077 # as all of a run
# MPI knows exit codes of its own; who links its word to the name of all is first, as a link
# replaces nothing.
if [ "$status" != 0 ] && [ -n "${CK_FAILURE:-}" ]; then
  # How far the output had come, so that what others say who fail next is not taken for its own.
  log=$(stat -L -c '{"inode": %i, "size": %s}' /dev/fd/3 3>&2 2>/dev/null) || log=null
  draft=$CK_FAILURE.$RANK
  {
    printf '{"node": "%s", "rank": %d, "local_rank": %d, "exit_code": %d, "message": "%s", "log": %s}\n' \
      "$told_on" "$RANK" "$LOCAL_RANK" "$status" "$message" "$log" >"$draft" &&
      ln "$draft" "$CK_FAILURE"
    rm -f "$draft"
  } 2>/dev/null
fi
if [ "$status" = 0 ] && [ -n "${CK_FAILURE:-}" ] && [ ! -e "$CK_FAILURE.ended" ]; then
  draft=$CK_FAILURE.$RANK # who waits for a rank that ended well fails in its place
  {
    printf '{"node": "%s", "rank": %d}\n' "$CK_NODE_NAME" "$RANK" >"$draft" &&
      ln "$draft" "$CK_FAILURE.ended"
    rm -f "$draft"
  } 2>/dev/null
fi
# Hydra would wait for the other ranks of the node: mpi_launch.py, which listens, has the job ended.
if [ "$status" != 0 ] && [ -p "$CK_TMP/mpi_failed" ]; then
  # Opened to read as well, as whoever listens may have ended, and would be waited for.
  { echo "$status" 1<>"$CK_TMP/mpi_failed"; } 2>/dev/null
fi
exit "$status"
