# shellcheck shell=sh
cd /sys/class/net 2>/dev/null || { echo 'no /sys/class/net'; exit 77; }
r() { v=; { IFS= read -r v <"$1"; } 2>/dev/null || :; }
for i in *
do
case $i in @VIRTUAL@) continue;; esac
r "$i/operstate"; s=$v
case $s in up | unknown) ;; *) continue;; esac
r "$i/mtu"; m=$v; r "$i/speed"; p=$v; r "$i/type"
echo "$i|$m|$p|$v"
done
