# shellcheck shell=sh
# pid and user first: names of processes hold anything, commas too.
output=$(nvidia-smi --query-compute-apps=pid,used_memory,process_name \
--format=csv,noheader) || { c=$?; broken; printf '%s\n' "$output" >&2; exit "$c"; }
echo processes
printf '%s\n' "$output" | while IFS= read -r line
do
pid=${line%%,*}
case $pid in '' | *[!0-9]*) [ -z "$line" ] || echo "? $line"; continue ;; esac
user=$(stat -c %U "/proc/$pid" 2>/dev/null)
echo "${user:--} $line"
done
