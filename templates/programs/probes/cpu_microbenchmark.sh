# shellcheck shell=sh
# How long a fixed small computation takes, beside whatever runs on the node: the same program, awk,
# does the same additions everywhere. Longer than a cgroup's usual period of 0.1 s, a tenth to half
# a second of one CPU. Which awk it is comes along, for one with another is not comparable.
program=$(command -v awk)
file=$(readlink -f "$program")
echo "program=${file:-$program}"
i=0
while [ $i -lt 2 ]
do
i=$((i + 1))
read -r began _ </proc/uptime
awk 'BEGIN { for (i = 0; i < 2000000; i++) s += i % 7; if (s < 0) exit 1 }' || exit 1
read -r ended _ </proc/uptime
echo "round$i=$began $ended"
done
echo end
