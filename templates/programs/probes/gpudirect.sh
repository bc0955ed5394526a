# shellcheck shell=sh
cd /sys/class/infiniband 2>/dev/null && set -- * && [ -e "$1" ] ||
{ echo 'no RDMA device'; exit 77; }
[ -r /proc/driver/nvidia/version ] || { echo 'no NVIDIA driver'; exit 77; }
echo "kernel $(uname -r)"
while read -r m _
do case $m in nvidia_peermem | nv_peer_mem | efa_nv_peermem) echo "module $m";; esac
done </proc/modules
while IFS= read -r l
do case $l in NVRM*) echo "$l";; esac
done </proc/driver/nvidia/version
