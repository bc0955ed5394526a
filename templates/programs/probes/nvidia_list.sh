# shellcheck shell=sh
# The exit code is part of the answer: 9 says that the driver does not run, 15 that a GPU is lost
# (nvidia-smi --help, "RETURN VALUE").
output=$(nvidia-smi -L 2>&1)
c=$?
[ "$c" = 0 ] || broken
case $c in 124 | 126 | 127 | 137) exit "$c" ;; esac
echo "exit $c"
printf '%s\n' "$output"
