# shellcheck shell=bash
# BASH_ENV of both contenders: every bash that starts notes when, where and as what.
printf '%s\t%s\t%s\n' "$EPOCHREALTIME" "$HOSTNAME" "bash ${0##*/}" >>"$BENCH_STAMPS/trace"
