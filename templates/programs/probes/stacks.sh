# shellcheck shell=sh
# py-spy on each process of a job that is a rank: a Python process with a rank, whose parent is not
# that rank. Stands after ranks.sh; clusterkit/observe/diagnose/stacks.py reads what it prints.
python() { case $(readlink "/proc/$1/exe") in */python*) : ;; *) false ;; esac; }
value() { tr '\0' '\n' <"$e" | sed -n "s/^$1=//p"; }
locks() {
root=$(value TORCH_EXTENSIONS_DIR); home=$(value HOME)
: "${root:=${home:-/}/.cache/torch_extensions}"
for f in "$root"/*/lock "$root"/*/*/lock; do
[ -f "$f" ] && echo "! lock $(($(date +%s) - $(stat -c %Y "$f"))) $f"
done
}
stopped() { case $(sed -n 's/^State:[^A-Za-z]*//p' "/proc/$1/status" 2>/dev/null) in T*) : ;; *) false ;; esac; }
# KILL: whoever asks may have blocked the other signals, and py-spy has that from it.
look() { if command -v timeout >/dev/null; then timeout -s KILL 10 "$spy" "$@"; else "$spy" "$@"; fi; }
seen=0
# shellcheck disable=SC2046
set -- $(ranks)
all=" $* "
for l in "$@"; do
p=${l%%,*} r=${l##*,} e=/proc/${l%%,*}/environ
case ${l#*,} in *,-) continue ;; @MARKER@*) : ;; *) continue ;; esac
up=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$p/status" 2>/dev/null)
case $all in *" $up,${l#*,} "*) below=1 ;; *) below=0 ;; esac
if [ $below = 1 ] && { python "$up" || ! python "$p"; }; then
halt=; stopped "$p" && halt='[stopped]'
echo "+ $r $(tr -dc 'A-Za-z0-9_.+:-' <"/proc/$p/comm")$halt $(value CK_NODE_NAME)"; continue
fi
python "$p" || continue
own=$(value PATH)
first=$(tr '\0' '\n' <"/proc/$p/cmdline" | sed -n 1p)
case $first in /*) own=${first%/*}:$own ;; esac
spy=$(PATH=$own:@PATH@:$PATH; command -v py-spy)
seen=1
echo "@ $p $r $(value CK_NODE_NAME)"
set -- --pid "$p"
# A process that somebody has stopped cannot be stopped for the look.
stopped "$p" && { echo "! stopped"; set -- --nonblocking "$@"; }
if [ -z "$spy" ]; then echo "! missing"; continue; fi
dump=$(look dump "$@" 2>&1) && echo "$dump" || echo "$dump
! failed"
case $dump in *file_baton.py*) locks ;; esac
done
[ $seen = 1 ] || echo "! none"
