# shellcheck shell=sh
# Where no GPU has NVLink, nvidia-smi prints nothing at all or exits with 3 after saying so.
output=$(nvidia-smi nvlink -s 2>&1)
c=$?
[ -n "$output" ] && { printf '%s\n' "$output"; case $output in *GPU\ [0-9]*:*) exit 0 ;; esac; }
[ "$c" = 0 ] && { echo 'nvidia-smi lists no NVLink'; exit 77; }
broken
exit "$c"
