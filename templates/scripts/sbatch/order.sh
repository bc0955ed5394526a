# shellcheck shell=bash
# ck_order TOGETHER RANKS SWITCH...
# Puts ck_nodes into rank order: taken switch by switch, each of which gives its nodes in multiples
# of TOGETHER, then those that are left over, then those behind no SWITCH; and each gets its place in RANKS
# (clusterkit/launch/rank_layout/placement.py: near_first).
ck_order() {
  local together=$1 switch node number full
  local -a ranks here whole=() rest=() unknown=()
  local -A behind seen=() placed=()
  read -r -a ranks <<<"$2"
  shift 2
  if ((${#ranks[@]} != ${#ck_nodes[@]})); then
    echo "${#ck_nodes[@]} nodes, laid out for ${#ranks[@]}: they stay in Slurm's order" >&2
    return 0
  fi
  for switch; do
    behind=() here=()
    for node in $switch; do behind[$node]=1; done
    for node in "${ck_nodes[@]}"; do
      [[ -z ${behind[$node]:-} ]] || here+=("$node") seen[$node]=1
    done
    full=$((${#here[@]} / together * together))
    whole+=(${here[@]+"${here[@]:0:full}"}) rest+=(${here[@]+"${here[@]:full}"})
  done
  for node in "${ck_nodes[@]}"; do
    [[ -n ${seen[$node]:-} ]] || unknown+=("$node")
  done
  number=0
  for node in ${whole[@]+"${whole[@]}"} ${rest[@]+"${rest[@]}"} ${unknown[@]+"${unknown[@]}"}; do
    placed[${ranks[number++]}]=$node
  done
  for number in "${!ck_nodes[@]}"; do ck_nodes[number]=${placed[$number]}; done
}
