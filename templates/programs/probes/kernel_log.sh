# shellcheck shell=sh disable=SC2015
# dmesg first: the ring of the running kernel and nothing else. It may have wrapped, or be closed
# to users (kernel.dmesg_restrict), where the journal may still be open to them. Links that flap
# are told by systemd-networkd, of which only RDMA interfaces count, and a day.
log=$(dmesg 2>/dev/null) && from=dmesg || {
log=$(journalctl -k -b -q --no-pager -o short-monotonic 2>/dev/null); from=journalctl; }
case $log in *[0-9]*) ;; *)
broken; echo 'kernel log: permission denied (dmesg and journalctl -k)' >&2; exit 1 ;; esac
echo "log $from"
printf '%s
' "$log" |
grep -E -e 'NVRM: .*Xid|SXid|fallen off the bus|NVRM: The NVIDIA GPU [0-9a-f]' \
-e 'RmInitAdapter failed|nvidia [0-9a-f:.]+: .*device inaccessible' |
tail -n 400
printf '%s
' "$log" | grep -E 'peermem.*invalid context|segfault at .* in libnccl' | tail -n 50
n='ib[0-9a-z_.]+'
for d in /sys/class/infiniband/*/device/net/*; do [ -e "$d" ] && n="$n|${d##*/}"; done
journalctl -b -q --no-pager -o short-monotonic --since=-24h -t systemd-networkd 2>/dev/null |
grep -E "($n): [Ll]ost carrier" | tail -n 400
exit 0
