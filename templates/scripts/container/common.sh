# shellcheck shell=bash disable=SC2034,SC2154,SC2329
# What the container of a node gets of it. Set above: ck_image, ck_mounts (SOURCE:TARGET[:ro]),
# ck_names (variables of the job), ck_shm, ck_gpus (not empty: the job wants GPUs).
ck_refuse() {
  printf 'clusterkit: error: %s: %s\n  hint: %s\n' "$CK_NODE_NAME" "$1" "$2" >&2
  exit 125 # as Docker itself, where a container cannot be started
}

# Asks the command to end; a runtime may know better.
ck_end() { kill -TERM "$ck_child" 2>/dev/null || true; }

# Leaves in ck_binds what to mount. A source that is missing is refused: Docker would make it.
ck_find_binds() {
  local mount source target mode
  local -A taken=()
  ck_binds=()
  for mount in ${ck_mounts[@]+"${ck_mounts[@]}"}; do
    IFS=: read -r source target mode <<<"$mount"
    case $source in
      \~ | \~/*) source=$HOME${source#\~} ;;
      . | .. | ./* | ../*) source=$PWD/$source ;;
    esac
    if [[ $source == */* && ! -e $source ]]; then
      ck_refuse "$source is missing, and is to be mounted at $target" \
        "make it on every node, or correct --mount, or mounts: in clusterkit.yaml"
    fi
    taken[$target]=1
    ck_binds+=("$source:$target${mode:+:$mode}")
  done
  # The folder to start in, and those that launchers write to.
  for source in "$PWD" "$CK_TMP" "${CK_RESULTS:-}" "${CK_FAILURE:+${CK_FAILURE%/*}}" "${CK_ROUNDS:+${CK_ROUNDS%/*}}"; do
    [[ -d $source && $source != / && -z ${taken[$source]:-} ]] || continue
    taken[$source]=1
    ck_binds+=("$source:$source")
  done
}

# Adds to ck_names what ranks need of their node beside the job's own variables.
ck_find_names() {
  local name
  for name in $(compgen -e); do
    case $name in
      CK_* | FI_* | GLOO_* | NCCL_* | RCCL_* | SLURM_* | TORCH_* | UCX_*) ck_names+=("$name") ;;
      CUDA_DEVICE_* | CUDA_VISIBLE_DEVICES | HIP_VISIBLE_DEVICES | ROCR_VISIBLE_DEVICES) ck_names+=("$name") ;;
      MLFLOW_RUN_CONTEXT | OMP_NUM_THREADS | TENSORBOARD_LOGGING_DIR) ck_names+=("$name") ;;
      WANDB_NAME | WANDB_RESUME | WANDB_RUN_GROUP | WANDB_RUN_ID | WANDB_TAGS) ck_names+=("$name") ;;
    esac
  done
}

# CK_GPUS: nvidia, amd, or empty where the job wants none or the node has none.
CK_GPUS='' CK_DRIVER=
if [[ -n $ck_gpus && (-e /dev/nvidiactl || -e /dev/dxg) ]]; then
  CK_GPUS=nvidia
  CK_DRIVER=$(sed -n 's/^NVRM.* \([0-9]\{3,\}\.[0-9.]*\) .*/\1/p' /proc/driver/nvidia/version 2>/dev/null || true)
elif [[ -n $ck_gpus && -e /dev/kfd ]]; then
  CK_GPUS=amd
fi
ck_me=$(id -un 2>/dev/null || id -u) # not every user has a name on every node
# The name of the container tells whose it is, and there is never a second one.
CK_CONTAINER=clusterkit-${CK_JOB_UID:-$CK_JOB_ID-$CK_NODE_RANK-$$}
CK_CONTAINER=${CK_CONTAINER//[^A-Za-z0-9_.-]/-}
CK_WORKDIR=$PWD
CK_PID_NAMESPACE=$(readlink /proc/self/ns/pid)
export CK_GPUS CK_DRIVER CK_CONTAINER CK_WORKDIR CK_PID_NAMESPACE
mkdir "$CK_TMP/home"
# Held open by this script alone: inside.sh ends a container whose node script has gone.
mkfifo "$CK_TMP/life"
exec {ck_life}<>"$CK_TMP/life"
