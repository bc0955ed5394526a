# shellcheck shell=sh
# Every process counts here: nodes run this before each job.
cpu=/sys/devices/system/cpu
read -r driver 2>/dev/null <$cpu/cpu0/cpufreq/scaling_driver
if [ -n "$driver" ]
then governors=$(cat $cpu/cpu[0-9]*/cpufreq/scaling_governor 2>/dev/null | sort -u | tr '\n' ' '); fi
rdma=
for d in /sys/class/infiniband/*; do [ ! -e "$d" ] || rdma="$rdma${d##*/} "; done
set -- /proc/driver/nvidia/gpus/*
[ -e "$1" ] || shift
echo "governors=$governors"
echo "cpufreq_driver=$driver"
echo "rdma=$rdma"
echo "nvidia=$#"
echo "kernel=$(uname -r)"
echo "arch=$(uname -m)"
# os-release is last: its last line may have no end
cat /proc/cpuinfo /proc/meminfo /sys/kernel/mm/transparent_hugepage/enabled /etc/os-release 2>/dev/null |
awk -F'[: ]+' '
/^processor/ { cpus++ }
/^(MemTotal|MemAvailable|Hugetlb):/ { print $1 "=" $2 }
/^[a-z ]*\[[a-z]+\][a-z ]*$/ { gsub(/.*\[|\].*/, ""); print "thp=" $0 }
/^PRETTY_NAME=/ && !named++ { sub(/^PRETTY_NAME=/, ""); gsub(/"/, ""); print "os=" $0 }
END { print "cpus=" cpus + 0 }'
echo end
