# shellcheck shell=sh
output=$(nvidia-smi topo -m) || { c=$?; broken; printf '%s\n' "$output" >&2; exit "$c"; }
printf '%s\n' "$output"
