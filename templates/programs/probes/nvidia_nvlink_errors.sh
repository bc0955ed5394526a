# shellcheck shell=sh
# A healthy HGX node prints hundreds of zeros: of these only the number comes back.
read -r up _ </proc/uptime
output=$(nvidia-smi nvlink -e 2>&1)
c=$?
case $output in *'GPU '[0-9]*:*) ;; *)
[ "$c" = 0 ] && { echo 'nvidia-smi counts no NVLink errors'; exit 77; }
broken
printf '%s\n' "$output" >&2
exit "$c" ;;
esac
echo "up $up"
printf '%s\n' "$output" | awk '
/^GPU [0-9]+:/ { if (gpus++) print "counters " n; n = 0 }
/Link [0-9]+: .*: / { n++; if ($0 ~ /: (0|N\/A)[ \r]*$/) next }
NF
END { print "counters " n }'
echo end
