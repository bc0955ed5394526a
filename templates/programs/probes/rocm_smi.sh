# shellcheck shell=sh
# What `rocm-smi --json` says, else why there is nothing; stands after amd_head.sh. It answers in one
# line, and lines of a probe are cut at a few thousand bytes.
command -v rocm-smi >/dev/null 2>&1 || {
has || { echo 'no AMD GPU'; exit 77; }
echo '@MISSING@, though there is an AMD GPU' >&2; exit 127; }
output=$(rocm-smi @FLAGS@ --json 2>/dev/null) || {
c=$?; has || { echo 'no AMD GPU'; exit 77; }; exit "$c"; }
printf '%s\n' "$output" | short
