# shellcheck shell=bash
# ck_filter deepspeed.include|deepspeed.exclude HOST[:SLOT,...][@HOST...]
# Leaves in ck_nodes only the hosts of which the filter leaves something, and of each of these in
# ck_slots how many slots, in ck_left which (0,2), in ck_room how many there were, and in ck_was
# its place among all hosts. Its form was checked where it was planned; which hosts there are
# shows only here.
ck_filter() {
  local option=$1 wanted=1 spec host numbers rank slot
  local -a specs nodes=() slots=() left
  local -A named=()
  IFS=@ read -r -a specs <<<"$2"
  for spec in "${specs[@]}"; do
    host=${spec%:*} numbers=
    [[ $spec != *:* ]] || numbers=${spec##*:}
    for ((rank = 0; rank < ${#ck_nodes[@]}; rank++)); do
      [[ ${ck_nodes[rank]} != "$host" ]] || break
    done
    if ((rank == ${#ck_nodes[@]})); then
      echo "clusterkit: error: $option: there is no host $host in this job; its hosts: ${ck_nodes[*]}" >&2
      return 2
    fi
    [[ -n $numbers ]] || numbers=$(seq -s , 0 $((ck_slots[rank] - 1)))
    for slot in ${numbers//,/ }; do
      slot=$((10#$slot))
      if ((slot >= ck_slots[rank])); then
        echo "clusterkit: error: $option: host $host has no slot $slot; it has ${ck_slots[rank]}, counted from 0" >&2
        return 2
      fi
      named[$rank:$slot]=1
    done
  done
  [[ $option != *.exclude ]] || wanted=
  ck_left=() ck_room=() ck_was=()
  for rank in "${!ck_nodes[@]}"; do
    left=()
    for ((slot = 0; slot < ck_slots[rank]; slot++)); do
      [[ ${named[$rank:$slot]:-} != "$wanted" ]] || left+=("$slot")
    done
    ((${#left[@]})) || continue
    nodes+=("${ck_nodes[rank]}") slots+=("${#left[@]}")
    ck_left+=("$(IFS=, && echo "${left[*]}")") ck_room+=("${ck_slots[rank]}") ck_was+=("$rank")
  done
  if ((${#nodes[@]} == 0)); then
    echo "clusterkit: error: $option leaves no slot of this job; its hosts: ${ck_nodes[*]}" >&2
    return 2
  fi
  ck_nodes=("${nodes[@]}") ck_slots=("${slots[@]}")
}
