# shellcheck shell=sh
# nvidia-smi says on standard output, with 14 or 15, that an infoROM is corrupt or a GPU is lost;
# what it printed of the others counts all the same.
if [ -n "$ask" ] && output=$(nvidia-smi --query-gpu="$ask" --format=csv)
then printf '%s\n' "$output"
more=$(nvidia-smi -q -d TEMPERATURE,ROW_REMAPPER 2>/dev/null) ||
more=$(nvidia-smi -q -d TEMPERATURE 2>/dev/null) || exit 0
printf '%s\n' "$more"
exit 0
fi
nvidia-smi -q
c=$?
case $c in 0 | 14 | 15) exit "$c" ;; esac
broken
exit "$c"
