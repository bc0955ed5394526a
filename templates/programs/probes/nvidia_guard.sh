# shellcheck shell=sh
# Without a GPU an nvidia-smi on PATH means nothing: shared images have it on login nodes too. But
# only hardware that is seen tells that something is broken where nvidia-smi fails.
seen() {
[ -e /dev/nvidia0 ] && return 0
for d in /proc/driver/nvidia/gpus/*; do [ -d "$d" ] && return 0; done
for d in /sys/bus/pci/devices/*; do
v='' c=''; { read -r v <"$d/vendor"; read -r c <"$d/class"; } 2>/dev/null
case "$v $c" in '0x10de 0x03'*) return 0 ;; esac
done
return 1
}
broken() { seen || { echo 'no NVIDIA GPU'; exit 77; }; }
command -v nvidia-smi >/dev/null 2>&1 || {
broken; echo 'nvidia-smi is not on PATH, though there is an NVIDIA GPU' >&2; exit 127; }
