# shellcheck shell=sh
[ -n "$ask" ] || { broken; nvidia-smi >&2; exit 1; }
output=$(nvidia-smi --query-gpu="$ask" --format=csv)
c=$?
case $c in 0 | 14 | 15) printf '%s\n' "$output"; exit "$c" ;; esac
broken
printf '%s\n' "$output" >&2
exit "$c"
