# shellcheck shell=bash disable=SC2034,SC2154,SC2329
# Apptainer, or Singularity as it was called: the container is a child of this script, sees the
# devices and /dev/shm of the node, and is the submitter's own.
ck_enter() {
  local item tool
  tool=$(command -v apptainer || command -v singularity) || ck_refuse "there is no apptainer" \
    "install it there, module load it (modules: in clusterkit.yaml), or choose another --container"
  if [[ $ck_image != *://* && ! -e $ck_image ]]; then
    ck_refuse "no image $ck_image" "a path that every node has, or docker://NAME, oras://NAME"
  fi
  ck_find_binds
  for item in ${ck_names[@]+"${ck_names[@]}"}; do
    # Else the image's own value would win.
    [[ ! -v $item ]] || export "APPTAINERENV_$item=${!item}" "SINGULARITYENV_$item=${!item}"
  done
  ck_inside=("$tool" exec --pwd="$CK_WORKDIR")
  case $CK_GPUS in
    nvidia) ck_inside+=(--nv) ;;
    amd) ck_inside+=(--rocm) ;;
  esac
  for item in "${ck_binds[@]}"; do ck_inside+=(--bind="$item"); done
  ck_inside+=("$ck_image" sh "$CK_TMP/inside.sh")
}

ck_leave() { :; }
