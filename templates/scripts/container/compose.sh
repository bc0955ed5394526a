# shellcheck shell=bash disable=SC2034,SC2154,SC2329
# Docker Compose: the rendered file of this host, and over it what only the host knows. The file
# runs the whole node script inside the image, so it gets no words of ours.
ck_text() {
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  printf '"%s"' "${text//\$/\$\$}"
}

ck_write_override() {
  local item
  echo 'services: {train: {'
  echo "labels: {clusterkit.job: $(ck_text "$CK_CONTAINER")},"
  echo "entrypoint: [sh, $(ck_text "$CK_TMP/inside.sh")], working_dir: $(ck_text "$CK_WORKDIR"),"
  [[ -z $ck_user ]] || echo "user: $(ck_text "$ck_user"),"
  [[ $ck_security != *userns* ]] || echo "userns_mode: host,"
  echo "group_add: [$(printf '"%s",' ${ck_groups[@]+"${ck_groups[@]}"})],"
  case $CK_GPUS in
    nvidia) echo "deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}," ;;
    amd) echo "security_opt: ['seccomp=unconfined']," ;;
  esac
  [[ -z $CK_GPUS && ! -d /dev/infiniband ]] || echo "ulimits: {memlock: -1}, cap_add: [IPC_LOCK],"
  echo "devices: ["
  [[ $CK_GPUS != amd ]] || echo "/dev/kfd, /dev/dri,"
  [[ ! -d /dev/infiniband ]] || echo "/dev/infiniband,"
  echo "], volumes: ["
  for item in "${ck_binds[@]}"; do echo "$(ck_text "$item"),"; done
  echo "], environment: ["
  for item in HOME="$CK_TMP/home" USER="$ck_me" LOGNAME="$ck_me" ${ck_names[@]+"${ck_names[@]}"}; do
    echo "$(ck_text "$item"),"
  done
  echo ']}}'
}

ck_enter() {
  ck_ask_engine
  docker compose version >/dev/null 2>&1 || ck_refuse "docker has no compose" \
    "install Compose 2 (the package docker-compose-plugin); docker-compose 1 is too old"
  ck_files=$(dirname "${BASH_SOURCE[0]}")
  ck_files=$(cd "$ck_files" && pwd)
  [[ -e $ck_files/compose-$CK_NODE_NAME.yaml ]] || ck_refuse \
    "no file compose-$CK_NODE_NAME.yaml beside node.sh" "clusterkit render writes one for each host"
  ck_find_user
  ck_find_binds
  ck_find_names
  ck_write_override >"$CK_TMP/override.yaml"
  ck_inside=()
  ck_leave
  # Not `up`: `run` has the exit code and the output of the service alone, passes signals on, and
  # leaves no container where this script is killed.
  ck_command=(
    docker compose --ansi=never --project-name="${CK_CONTAINER,,}" --project-directory="$ck_files"
    --file="$ck_files/compose-$CK_NODE_NAME.yaml" --file="$CK_TMP/override.yaml"
    run --rm --no-TTY --interactive=false --name="$CK_CONTAINER" train
  )
}

