# shellcheck shell=bash disable=SC2034,SC2154,SC2329
# Docker: its daemon starts the container, which is no child of this script.
ck_ask_engine() {
  command -v docker >/dev/null || ck_refuse "there is no docker" \
    "install Docker there, or choose another --container"
  # Without a daemon some clients still exit with 0.
  if ! ck_security=$(docker info --format '{{.ServerVersion}} {{.SecurityOptions}}' 2>&1) ||
    [[ ! $ck_security =~ ^[0-9] ]]; then
    [[ ${ck_security,,} != *'permission denied'* ]] || ck_refuse \
      "$ck_me may not use Docker: ${ck_security##*$'\n'}" \
      "sudo usermod -aG docker $ck_me, and log in anew; or rootless Docker; or apptainer"
    ck_refuse "no Docker daemon answers: ${ck_security##*$'\n'}" \
      "sudo systemctl start docker; or set DOCKER_HOST where it listens elsewhere"
  fi
  if ! docker image inspect "$ck_image" >/dev/null 2>&1; then
    echo "clusterkit: $CK_NODE_NAME pulls $ck_image"
    docker pull --quiet "$ck_image" || ck_refuse "no image $ck_image, and it cannot be pulled" \
      "clusterkit images distribute brings images to nodes without a registry; or correct --image"
  fi
  [[ $CK_GPUS != nvidia ]] || command -v nvidia-ctk nvidia-container-cli >/dev/null ||
    echo "clusterkit: warning: $CK_NODE_NAME has GPUs, but no NVIDIA container toolkit" >&2
}

# Files belong to who submitted: a rootless daemon maps its root to that user by itself.
ck_find_user() {
  ck_user='' ck_groups=()
  [[ $ck_security != *rootless* ]] || return 0
  ck_user=$(id -u):$(id -g)
  read -r -a ck_groups <<<"$(id -G)"
  [[ $CK_GPUS != amd ]] || ck_groups+=("$(stat -c %g /dev/kfd)")
}

# Leaves in ck_devices the GPUs that this script sees, by UUID: the daemon is outside of the job's
# cgroup, where all GPUs are, with other numbers than Slurm's CUDA_VISIBLE_DEVICES has for its own.
ck_find_devices() {
  local listed kind
  listed=$(nvidia-smi -L 2>/dev/null || true)
  for kind in MIG GPU; do
    ck_devices=$(sed -n "s/.*(UUID: \($kind-[^)]*\)).*/\1/p" <<<"$listed")
    [[ -z $ck_devices ]] || break
  done
  ck_devices=${ck_devices//$'\n'/,}
}

ck_enter() {
  local item
  ck_ask_engine
  ck_find_user
  ck_find_binds
  ck_find_names
  ck_inside=(
    docker run --rm --init --name="$CK_CONTAINER" --label="clusterkit.job=$CK_CONTAINER"
    --network=host --ulimit=stack=67108864 --workdir="$CK_WORKDIR"
  )
  if [[ $ck_shm == host ]]; then
    ck_inside+=(--ipc=host)
  else
    ck_inside+=(--shm-size="$ck_shm")
  fi
  [[ -z $ck_user ]] || ck_inside+=(--user="$ck_user")
  [[ $ck_security != *userns* ]] || ck_inside+=(--userns=host)
  for item in ${ck_groups[@]+"${ck_groups[@]}"}; do ck_inside+=(--group-add="$item"); done
  case $CK_GPUS in
    nvidia)
      ck_find_devices
      ck_inside+=("--gpus=${ck_devices:+\"device=}${ck_devices:-all}${ck_devices:+\"}") # a field of CSV
      ;;
    amd) ck_inside+=(--device=/dev/kfd --device=/dev/dri --security-opt=seccomp=unconfined) ;;
  esac
  [[ ! -d /dev/infiniband ]] || ck_inside+=(--device=/dev/infiniband --cap-add=IPC_LOCK)
  # RDMA and pinned memory; a daemon without the right to raise limits refuses it.
  [[ -z $CK_GPUS && ! -d /dev/infiniband ]] || ck_inside+=(--ulimit=memlock=-1)
  for item in "${ck_binds[@]}"; do ck_inside+=(--volume="$item"); done
  # The user may be unknown in the image: then Python finds home and name only here.
  ck_inside+=(--env=HOME="$CK_TMP/home" --env=USER="$ck_me" --env=LOGNAME="$ck_me")
  # By name, never by value: no value can be misquoted, or shows in `ps`.
  for item in ${ck_names[@]+"${ck_names[@]}"}; do ck_inside+=(--env="$item"); done
  # Not the image's own entrypoint: a banner, or a python that takes our words for its script.
  ck_inside+=(--entrypoint=sh "$ck_image" "$CK_TMP/inside.sh")
  ck_leave
}

# Not by way of its client. That of Docker leaves at the third signal, and Slurm sends it two; that
# of Compose would leave at once, without a word to the container.
ck_end() {
  docker kill --signal=TERM "$CK_CONTAINER" >/dev/null 2>&1 ||
    kill -TERM "$ck_child" 2>/dev/null || true
}

# What an earlier attempt left here, or this one: a client that is killed takes nothing with it.
ck_leave() {
  docker rm --force "$CK_CONTAINER" >/dev/null 2>&1 || true
}
