# shellcheck shell=sh
cd /sys/class/infiniband 2>/dev/null && set -- * && [ -e "$1" ] ||
{ echo 'no RDMA device'; exit 77; }
r() { v=; { IFS= read -r v <"$1"; } 2>/dev/null || :; }
for d
do
r "$d/fw_ver"; f=$v; r "$d/board_id"; b=$v; r "$d/hca_type"
echo "device|$d|$f|$b|$v"
for p in "$d"/ports/*
do
[ -e "$p/state" ] || continue
o="port|$d|${p##*/}"
for n in state phys_state rate link_layer lid sm_lid
do r "$p/$n"; o="$o|$v"
done
echo "$o"
case $o in
*'|Ethernet|'*)
for g in "$p"/gids/*
do
r "$g"
case $v in '' | *:0000:0000:0000:0000:0000) continue;; esac
i=${g##*/}; a=$v; r "$p/gid_attrs/types/$i"; t=$v; r "$p/gid_attrs/ndevs/$i"
echo "gid|$d|${p##*/}|$i|$t|$a|$v"
done;;
esac
done
done
