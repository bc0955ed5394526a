# shellcheck shell=sh
# sysfs shows a container or a Slurm job the whole machine, of which they may have a share: device
# nodes are missing in the one and may not be opened in the other.
found=''
for d in /sys/bus/pci/devices/*; do
v='' c=''; { read -r v <"$d/vendor"; read -r c <"$d/class"; } 2>/dev/null
case "$v $c" in '0x10de 0x03'* | '0x1002 0x03'* | '0x1002 0x12'*) ;; *) continue ;; esac
i=''; read -r i <"$d/device" 2>/dev/null
l=$(readlink "$d/driver" 2>/dev/null)
b=$(od -An -tx1 -N4 "$d/config" 2>/dev/null | tr -d ' \n')
found="$found${d##*/} $c $v:$i ${l##*/}- ${b:--}
"
done
[ -n "$found" ] || { echo 'no GPU on the PCI bus'; exit 77; }
n=0
for f in /dev/nvidia[0-9]*; do
[ -c "$f" ] || continue
case $({ : <"$f"; } 2>&1) in *'not permitted'* | *denied*) ;; *) n=$((n + 1)) ;; esac
done
echo "pci $n"
printf '%s' "$found"
