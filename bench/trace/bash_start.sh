# shellcheck shell=bash
# BASH_ENV of both contenders: every bash that starts notes when, where and as what.
# Asks the kernel where: HOSTNAME comes with the job's environment and names its first node.
read -r bench_host </proc/sys/kernel/hostname
printf '%s\t%s\t%s\n' "$EPOCHREALTIME" "$bench_host" "bash ${0##*/}" >>"$BENCH_STAMPS/trace"
unset bench_host
