# shellcheck shell=sh disable=SC2043
cd /sys/class/infiniband 2>/dev/null && set -- * && [ -e "$1" ] ||
{ echo 'no RDMA device'; exit 77; }
s() {
for p in */ports/*
do
[ -e "$p/counters/link_downed" ] || continue
o="$1 $p"
for n in @COUNTERS@
do
v=; { read -r v <"$p/counters/$n"; } 2>/dev/null || :
case $v in '' | 0) ;; *) o="$o $n=$v";; esac
done
echo "$o"
done
}
s 1; sleep 1; s 2
