# shellcheck shell=sh
# A ring: every node proves once that it can log in and once that it can be logged in to.
set -- @HOSTS@
me=${SLURMD_NODENAME:-$(uname -n)}
peer=
last=
for host; do
case $last in "$me"|"${me%%.*}") [ -n "$peer" ] || peer=$host ;; esac
last=$host
done
[ -n "$peer" ] || peer=$1
case $peer in "$me"|"${me%%.*}") echo "it is the only node"; exit 77 ;; esac
command -v ssh >/dev/null || { echo "ssh: not found" >&2; exit 127; }
output=$(ssh -n -o BatchMode=yes -o ConnectTimeout=5 -o StrictHostKeyChecking=yes "$peer" true 2>&1)
echo "code=$?"
echo "peer=$peer"
echo "said=$(echo "$output" | tail -n 1)"
echo end
