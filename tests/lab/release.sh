#!/usr/bin/env bash
# Run a command on the Slurm of another Debian: tests/lab/release.sh SUITE COMMAND [ARG]...
#
# mmdebstrap makes a root folder of that Debian once, from the mirror that this system has, and keeps it in
# ~/.cache/clusterkit. The command runs in it, in the current folder of this checkout and with the Python of
# its virtual environment, in PID and mount namespaces of its own: processes and files that it leaves behind
# end with it. Exit 77: it cannot be had here, which needs root, mmdebstrap and a mirror with that Debian.
set -euo pipefail

suite=${1:?of which Debian? release.sh SUITE COMMAND} && shift
packages=slurm-wlm,slurmdbd,mariadb-server-core,munge,openssh-server,openssh-client,busybox-static
packages+=,iproute2,nftables,iputils-ping,iperf3,openmpi-bin,tcsh,fish,python3,procps,mount,git
cache=${XDG_CACHE_HOME:-$HOME/.cache}/clusterkit
root=$cache/slurm-$suite
checkout=$(cd "$(dirname "$0")/../.." && pwd -P)

lacks() {
  echo "the Slurm of Debian $suite cannot be had here: $1" >&2
  exit 77
}
[[ $EUID == 0 ]] || lacks 'it needs root'
unshare --mount --pid --fork true 2>/dev/null || lacks 'it needs mount and PID namespaces'

if [[ ! -e $root ]]; then
  type mmdebstrap >/dev/null 2>&1 || lacks 'apt-get install mmdebstrap'
  echo "making a root folder of Debian $suite in $root (some minutes, once)" >&2
  mkdir -p "$cache"
  made=$(mktemp -d "$cache/.slurm-$suite.XXXXXX")
  trap 'rm -rf --one-file-system "$made"' EXIT
  # shellcheck disable=SC2016 # expanded by apt-get
  mirrors=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 2>/dev/null || :)
  mirror=${mirrors%%$'\n'*}
  # A mirror that stands still is good enough for tests: who signed its packages is asked all the same.
  mmdebstrap --quiet --variant=apt --aptopt='APT::Install-Recommends "false"' \
    --aptopt='Acquire::Check-Valid-Until "false"' --include="$packages" "$suite" "$made" \
    ${mirror:+"deb $mirror $suite main"} || lacks "mmdebstrap did not get it from ${mirror:-the mirrors of Debian}"
  mv -T "$made" "$root"
  trap - EXIT
fi

mkdir -p "$root.changes"

python=$("$checkout/.venv/bin/python" -c 'import sys; print(sys.base_prefix)')
# The Python of the system is not below a prefix of its own.
shown=("$checkout" "$python")
if [[ $python == /usr ]]; then
  shown=("$checkout" /usr/bin/python3.11 /usr/lib/python3.11)
fi

# bash stays process 1 and reaps what the practice cluster leaves to it. pivot_root and not chroot: who
# enters a mount namespace made below lands at its root.
export CLUSTERKIT_LAB=/tmp/clusterkit-lab-$suite
# shellcheck disable=SC2016 # expanded by the shell inside
exec unshare --mount --pid --fork --kill-child --propagation private bash -c '
  set -euo pipefail
  root=$1 folder=$PWD count=$2 && shift 2
  # One file system with /tmp in it, as the hosts of the practice cluster look into each other
  mount -t tmpfs tmpfs "$root.changes"
  mkdir "$root.changes/upper" "$root.changes/work"
  mount -t overlay -o "lowerdir=$root,upperdir=$root.changes/upper,workdir=$root.changes/work" overlay "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  for shown in "${@:1:count}"; do
    if [[ -d $shown ]]; then mkdir -p "$root$shown"; else mkdir -p "$root${shown%/*}" && touch "$root$shown"; fi
    mount --bind "$shown" "$root$shown"
  done
  shift "$count"
  mkdir -p "$root/.outside" && cd "$root"
  pivot_root . .outside && umount -l /.outside && cd "$folder"
  status=0
  "$@" || status=$?
  exit "$status"' release "$root" "${#shown[@]}" "${shown[@]}" "$@"
