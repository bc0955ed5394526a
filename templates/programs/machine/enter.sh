# shellcheck shell=bash
# enter.sh MARKER NODE RUNTIME COMMAND...: runs a command as the launcher of a job runs on this node:
# with its variables, in its folder and in its container, whose RUNTIME is empty where there is none.
# MARKER is what CK_JOB_UID is, or begins with where it ends in a colon; NODE is what CK_NODE_NAME is, or empty.
# Processes of other users are not looked at: their variables are not the job's.
ck_refuse() { # TEXT [CODE]
  printf 'clusterkit: error: %s: %s\n' "${ck_node:-$(uname -n)}" "$1" >&2
  exit "${2:-2}"
}

ck_tool() { # NAME HINT: sets ck_found; the job's PATH may be that of its image, and ck_path is the node's
  ck_found=$(type -P -- "$1") || ck_found=$(PATH=$ck_path type -P -- "$1") ||
    ck_refuse "there is no $1, which leads into the $ck_runtime container of the job"$'\n'"hint: $2" 127
}

ck_marker=$1 ck_node=$2 ck_runtime=$3
shift 3
ck_here=${SLURMD_NODENAME:-$(uname -n)}
# Docker is asked from outside, by whoever started the container; into others a process leads.
ck_wanted=apart
case $ck_runtime in docker | compose | '') ck_wanted=here ;; esac
ck_pid='' ck_best=0 ck_ours=$(readlink /proc/self/ns/mnt)
while read -r ck_one; do
  [[ -O /proc/$ck_one/environ ]] || continue
  mapfile -d '' -t ck_its <"/proc/$ck_one/environ" || continue
  ck_value=1 ck_name='' ck_named='' ck_started='' ck_ranked=
  for ck_item in ${ck_its[@]+"${ck_its[@]}"}; do
    case $ck_item in
      CK_TMP=*) ck_started=1 ;; # by the node script, which has set up all that is to be
      RANK=* | HOROVOD_RANK=*) ck_ranked=1 ;;
      CK_NODE_NAME=*) ck_name=${ck_item#*=} ;;
      CK_JOB_UID=*) ck_named=${ck_item#*=} ;;
    esac
  done
  [[ $ck_named == "$ck_marker" || ($ck_marker == *: && $ck_named == "$ck_marker"*) ]] || continue
  [[ -n $ck_started && (-z $ck_node || -z $ck_name || $ck_name == "$ck_node") ]] || continue
  [[ -n $ck_ranked ]] || ck_value=$((ck_value + 1)) # the launcher has no variables of one rank
  ck_where=apart
  [[ $(readlink "/proc/$ck_one/ns/mnt") != "$ck_ours" ]] || ck_where=here
  [[ $ck_where != "$ck_wanted" ]] || ck_value=$((ck_value + 4))
  [[ $ck_name != "$ck_here" ]] || ck_value=$((ck_value + 8)) # machines may share their processes
  ((ck_value > ck_best)) || continue
  ck_pid=$ck_one ck_best=$ck_value ck_variables=("${ck_its[@]}")
done < <(grep -lzsF "CK_JOB_UID=$ck_marker" /proc/[0-9]*/environ | cut -d/ -f3 | sort -n)
((ck_best > 0)) || ck_refuse "no process of the job runs here yet, or any more"

ck_terminal=${TERM:-} ck_path=$PATH
for ck_item in $(compgen -e); do unset "$ck_item" 2>/dev/null; done
for ck_item in "${ck_variables[@]}"; do
  [[ ! ${ck_item%%=*} =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || export "${ck_item?}" 2>/dev/null
done
[[ -z $ck_terminal ]] || export TERM=$ck_terminal

case $ck_runtime in
  docker | compose)
    ck_flags=(--interactive)
    [[ ! -t 0 || ! -t 1 ]] || ck_flags+=(--tty)
    ck_tool docker 'add its folder to PATH there, in ~/.bashrc, or have Docker installed; what the job prints: clusterkit logs'
    exec "$ck_found" exec "${ck_flags[@]}" --workdir="$CK_WORKDIR" "$CK_CONTAINER" "$@"
    ;;
  ?*)
    ((ck_best & 4)) || ck_refuse "no process of the job is in its container yet"
    ck_flags=(--target="$ck_pid" --mount --wd)
    [[ $(readlink "/proc/$ck_pid/ns/user") == "$(readlink /proc/self/ns/user)" ]] ||
      ck_flags+=(--user --preserve-credentials)
    ck_tool nsenter 'have util-linux installed there, whose program it is; what the job prints: clusterkit logs'
    exec "$ck_found" "${ck_flags[@]}" -- "$@"
    ;;
esac
cd -P "/proc/$ck_pid/cwd" || exit 2
type -P -- "$1" >/dev/null || ck_refuse "there is no command $1" 127
exec -- "$@"
