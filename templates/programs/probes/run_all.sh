# shellcheck shell=sh
# shellcheck disable=SC2013,SC2086,SC2154,SC2034,SC2015,SC2030,SC2031
# Run all probes of a node; clusterkit/transport/script.py writes them in the place of @LANES@, and
# reads the frames that come back: lines of TOKEN TASK NAME KIND REST. Its comments are not sent.
main() {
exec 3>&1
LC_ALL=C LANG=C; export LC_ALL LANG; unset LANGUAGE
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; export PATH
CLUSTERKIT_PROBES=@TOKEN@; export CLUSTERKIT_PROBES
T="@TOKEN@ ${SLURM_PROCID:-0}"
echo "$T - @ $(date +%s.%N) ${SLURMD_NODENAME:-$(uname -n)}"
# put a frame around each line of one stream, only in a process of its own; most have a line or none,
# for which awk would take longer than what printed them
L() {
for i in 1 2 3 4; do
IFS= read -r l || [ -n "$l" ] || return 0
printf '%s%.@LINE@s\n' "$T $1 $2 " "$l"
done
exec awk -v p="$T $1 $2 " '{ print p substr($0, 1, @LINE@); fflush() }'
}
# a command with a time limit, where there is `timeout` with the options of coreutils
if timeout -k 1 1 true 2>/dev/null
then B() { timeout -k @KILL@ "$@"; }
else B() { shift; "$@"; }
fi
# say now and then that the script still runs; end it once nobody reads that
H() {
trap '' PIPE
while :; do
sleep @BEAT@ >/dev/null 2>&1 3>&- || return
echo "$T - . - -" || break
done
kill -s TERM $$
}
# end all probes, which are found by their variable
X() {
trap '' INT TERM HUP
exec 2>/dev/null
kill -s KILL $h $j
for s in TERM KILL; do
for p in $(grep -zslF CLUSTERKIT_PROBES=@TOKEN@ /proc/[0-9]*/environ); do
p=${p%/environ}; kill -s $s "${p#/proc/}"
done
[ $s = KILL ] || sleep 1
done
exit 130
}
# run one probe: its name, time limit and snippet; times are seconds since boot, read without a fork
P() {
read -r s _ </proc/uptime
r=$({ { { B "$2" sh -c "$3" 2>&4 3>&- 4>&- 5>&-; echo "$?" >&5; } | L "$1" o >&3; } 4>&1 |
L "$1" e >&3; } 5>&1)
read -r w _ </proc/uptime
echo "$T $1 = $r $s $w"
}
H 2>/dev/null &
h=$! j=
trap X INT TERM HUP
@LANES@
[ -z "$j" ] || wait $j || X
echo "$T - = 0 - -"
{ kill -s KILL "$h"; wait; } 2>/dev/null
}
main </dev/null
