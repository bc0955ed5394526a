# shellcheck shell=bash disable=SC2034,SC2154,SC2329
# Enroot: the container is a child of this script and the submitter's own. Its hooks mount GPUs,
# InfiniBand devices and /dev/shm.
ck_enter() {
  local item
  command -v enroot >/dev/null || ck_refuse "there is no enroot" \
    "install it there, or choose another --container"
  if [[ $ck_image == */* && ! -e $ck_image ]]; then
    ck_refuse "no image $ck_image" \
      "a .sqsh file that every node has (enroot import), or the name of an unpacked one (enroot create)"
  fi
  ck_find_binds
  ck_find_names
  ck_inside=(enroot start --rw)
  for item in "${ck_binds[@]}"; do ck_inside+=(--mount="$item"); done
  for item in ${ck_names[@]+"${ck_names[@]}"}; do ck_inside+=(--env="$item"); done
  ck_inside+=("$ck_image" sh "$CK_TMP/inside.sh")
}

ck_leave() { :; }
