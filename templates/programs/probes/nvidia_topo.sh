# shellcheck shell=sh
said=$(nvidia-smi topo -m) || { c=$?; broken; printf '%s\n' "$said" >&2; exit "$c"; }
printf '%s\n' "$said"
