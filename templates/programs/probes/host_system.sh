# shellcheck shell=sh disable=SC2012
cpu=/sys/devices/system/cpu
echo "kernel=$(uname -r)"
echo "arch=$(uname -m)"
echo "os=$(sed -n 's/^PRETTY_NAME=//p' /etc/os-release 2>/dev/null | tr -d '"')"
echo "cpus=$(grep -c '^processor' /proc/cpuinfo)"
echo "governors=$(cat $cpu/cpu[0-9]*/cpufreq/scaling_governor 2>/dev/null | sort -u | tr '\n' ' ')"
echo "cpufreq_driver=$(cat $cpu/cpu0/cpufreq/scaling_driver 2>/dev/null)"
awk -F'[: ]+' '/^(MemTotal|MemAvailable|Hugetlb):/ { print $1 "=" $2 }' /proc/meminfo
echo "thp=$(sed 's/.*\[\(.*\)\].*/\1/' /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null)"
echo "rdma=$(ls /sys/class/infiniband 2>/dev/null | tr '\n' ' ')"
echo "nvidia=$(ls /proc/driver/nvidia/gpus 2>/dev/null | wc -l)"
echo end
