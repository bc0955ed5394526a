# shellcheck shell=bash disable=SC2034,SC2154,SC2329
# Pyxis: a step of its own within this node's share of the job enters the image, so that the image
# needs no more than the training does.
ck_enter() {
  local mounts
  srun --help 2>&1 | grep -q -- --container-image || ck_refuse "srun knows no --container-image" \
    "pyxis is not installed on this cluster: choose another --container"
  ck_find_binds
  mounts=$(printf ',%s' "${ck_binds[@]}")
  ck_inside=(
    srun --overlap --nodes=1 --ntasks=1 --ntasks-per-node=1 --nodelist="$SLURMD_NODENAME"
    --mem=0 --mpi=none --unbuffered --export=ALL --input=none
    --container-image="$ck_image" --container-mounts="${mounts#,}" --container-workdir="$CK_WORKDIR"
  )
  # srun inherits sbatch's --cpus-per-task in some releases only (not in 22.05).
  [[ -z ${SLURM_CPUS_PER_TASK:-} ]] || ck_inside+=(--cpus-per-task="$SLURM_CPUS_PER_TASK")
  ck_inside+=(sh "$CK_TMP/inside.sh")
}

# srun would kill its step at once; the image has the processes of the node.
ck_end() {
  kill -TERM "$(cat "$CK_TMP/pid" 2>/dev/null || echo "$ck_child")" 2>/dev/null || true
}

# An srun that is told to end while its step begins leaves at once, and the step is still tidying up.
ck_leave() {
  local pid
  pid=$(cat "$CK_TMP/pid" 2>/dev/null) || return 0
  while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
}
