# shellcheck shell=sh
if command -v amd-smi >/dev/null 2>&1 &&
static=$(amd-smi static --asic --driver --limit --json 2>/dev/null) &&
metric=$(amd-smi metric --temperature --ecc --json 2>/dev/null)
then case $static in *'"gpu"'*) printf 'amd-smi\n%s\n%s\n' "$static" "$metric"; exit 0 ;; esac
fi
