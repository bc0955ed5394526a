# shellcheck shell=sh disable=SC2012,SC2154,SC2157,SC2170
# Stands after volume.sh. The children that touch a folder first hold no pipe of ours and are not
# waited for: on a dead network file system they cannot even be killed, and must not hang whoever
# listens to us.
describe() {
if [ -w "$1/." ]; then echo "writable=1"; else echo "writable=0"; fi
echo "inode=$(ls -di "$1/." | awk '{ print $1 }')"
volume "$1" || return
echo "type=$(MOUNT="${row##*% }" awk '$2 == ENVIRON["MOUNT"] { t = $3; o = $4 }
END { print t, o }' /proc/self/mounts)"
[ $number -gt 1 ] || [ -z @MARKER@ ] || {
if [ -e "$1"/@MARKER@ ]; then read -r seen <"$1"/@MARKER@; echo "marker=$seen"; fi; }
}
set -- @PATHS@
children=
for folder; do
( exec >/dev/null 2>&1
[ -d "$folder/." ] && exit 0; [ -e "$folder" ] && exit 3; exit 2 ) &
children="$children $!"
done
alive() { for child in $children; do kill -0 "$child" 2>/dev/null && return 0; done; return 1; }
tenths=0
while [ $tenths -lt @TENTHS@ ] && alive; do
if sleep 0.1 2>/dev/null; then tenths=$((tenths + 1)); else sleep 1; tenths=$((tenths + 10)); fi
done
number=0
for child in $children; do
eval "folder=\${$((number + 1))}"
echo "folder=$number"
number=$((number + 1))
if kill -0 "$child" 2>/dev/null; then kill -9 "$child"; echo "state=hung"; continue; fi
wait "$child"
case $? in
0) echo "state=ok"; describe "$folder" ;;
2) echo "state=absent" ;;
*) echo "state=denied" ;;
esac
done
echo end
