#!/bin/sh
# Holder of one host of the practice cluster: process 1 of its PID namespace.
# Usage: holder.sh ROOT NAME, started by unshare with all namespaces new.
# Prints "ready" when the host stands; then only reaps orphans until it is killed.
set -eu
root=$1
name=$2

hostname "$name"
mount -t proc proc /proc
ip link set lo up

if [ "$name" = switch ]; then
    # Where Docker runs, bridged packets pass through iptables and a DROP policy.
    for hook in /proc/sys/net/bridge/bridge-nf-call-*; do
        if [ -e "$hook" ]; then echo 0 >"$hook"; fi
    done
    ip link add br0 type bridge
    ip link set br0 up
else
    # /etc/resolv.conf can be a link into /run: hide /etc's files while it still resolves.
    for file in "$root"/etc/*; do
        target=/etc/${file##*/}
        if [ -e "$target" ]; then mount --bind "$file" "$target"; fi
    done
    if [ -e /etc/ssh/ssh_config ]; then
        mount --bind "$root/ssh/ssh_config" /etc/ssh/ssh_config
    fi
    # A sysfs of this network namespace, so that /sys/class/net shows this host's links.
    # The machine's cgroups stay out of it: nothing here may make groups there.
    mount -t sysfs sysfs /sys
    for dir in /dev/shm /run /var/log; do mount -t tmpfs -o mode=755 lab "$dir"; done
    chmod 1777 /dev/shm
    mkdir -p /run/sshd /run/munge /run/lock
    # bash reads this where sshd starts it. The machine's own is slow at best, and a login that is
    # cut off half way may leave locks of it behind (pyenv's holds up all others for a minute).
    home=$(getent passwd 0 | cut -d: -f6)
    if [ -e "$home/.bashrc" ]; then mount --bind /dev/null "$home/.bashrc"; fi
fi

echo ready
exec >/dev/null
while :; do
    sleep 86400 &
    wait $! || :
done
