# shellcheck shell=sh
# What a node is doing: raw counters of the kernel, and the processes of clusterkit's jobs on it.
# Stands after ranks.sh; clusterkit/observe/vitals/host.py reads what it prints.
# time of the CPUs, load, memory
stats() { awk -v stat=/proc/stat '
FILENAME == stat && $1 == "cpu" { print; next }
FILENAME == stat && /^cpu[0-9]/ { n++; next }
FILENAME == stat { next }
FILENAME == "/proc/loadavg" { print "load", $1; next }
/^(MemTotal|MemFree|MemAvailable|Buffers|Cached|SwapTotal|SwapFree):/ { print "memory", $1, $2 }
END { print "cpus", n + 0 }' /proc/stat /proc/loadavg /proc/meminfo; }
# an interface on top of one that is told: the same bytes pass both
stacked() {
for u in "/sys/class/net/$1"/lower_*
do
case ${u##*/lower_} in '*' | @VIRTUAL@) ;; *) return 0;; esac
done
return 1
}
nets() {
while IFS= read -r l
do
i=${l%%:*}; i=${i##* }
case $i in @VIRTUAL@) continue;; esac
if stacked "$i"; then continue; fi
# shellcheck disable=SC2086
case $l in *:*) set -f; set -- ${l#*:}; set +f; echo "net $1 $3 $4 $9 ${11} ${12} $i";; esac
done </proc/net/dev
}
r() { v=; { IFS= read -r v <"$1"; } 2>/dev/null || :; }
# an RDMA port whose counters are not numbers is left out
ports() {
for p in /sys/class/infiniband/*/ports/*
do
r "$p/counters/port_rcv_data"; a=$v; r "$p/counters/port_xmit_data"; b=$v
case $a in '' | *[!0-9]*) continue;; esac
case $b in '' | *[!0-9]*) continue;; esac
d=${p%/ports/*}
echo "port $a $b ${d##*/}/${p##*/}"
done
}
# quota FOLDER MICROSECONDS PERIOD PATH: the CPU limit of a cgroup
quota() {
case $3 in '' | *[!0-9]*) return;; esac
a=0 b=0
{ while read -r k n; do case $k in nr_periods) a=$n;; nr_throttled) b=$n;; esac
done <"$1/cpu.stat"; } 2>/dev/null || return
echo "quota $2 $3 $a $b $4"
}
# above MOUNT PATH: cgroups with a limit from here to the root, each once
above() {
p=$2
while :
do
case $seen in *"|$1$p|"*) return;; esac
seen="$seen|$1$p|" d=$1$p
r "$d/cpu.max"; case $v in '' | max*) ;; *) quota "$d" "${v% *}" "${v#* }" "$p";; esac
r "$d/cpu.cfs_quota_us"
case $v in '' | -*) ;; *) q=$v; r "$d/cpu.cfs_period_us"; quota "$d" "$q" "$v" "$p";; esac
r "$d/memory.max"
case $v in
'' | max) ;;
*) m=$v o=0; r "$d/memory.current"
if [ -n "$v" ] && { while read -r k n; do case $k in oom_kill) o=$n;; esac
done <"$d/memory.events"; } 2>/dev/null
then echo "limit $m $v $o $p"; fi;;
esac
case $p in '' | /) return;; esac
p=${p%/*}
done
}
groups() {
seen=''
for i in self $pids; do cat "/proc/$i/cgroup" 2>/dev/null; done | sort -u | {
while IFS= read -r l
do
c=${l#*:} g=${l##*:}; c=${c%%:*}; g=${g%/}
case ,$c, in
,,) above /sys/fs/cgroup "$g";;
*,cpu,*) above /sys/fs/cgroup/cpu "$g";;
esac
done
}
}
tasks() {
for i in $marks
do
r "/proc/${i%%,*}/stat"
case $v in *') '*) echo "task ${i#*,} $v";; esac
done
}
reading() {
r /proc/uptime; echo "reading ${v%% *}"
stats; nets; ports; groups; tasks
}
marks=$(ranks | sed -n '1,400p')
pids=''
for i in $marks; do pids="$pids ${i%%,*}"; done
echo "units $(getconf CLK_TCK 2>/dev/null || echo 100) $(getconf PAGESIZE 2>/dev/null || echo 4096)"
reading
