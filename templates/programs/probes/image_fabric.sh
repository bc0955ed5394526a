# shellcheck shell=sh disable=SC2194
# Nothing is pulled or unpacked. Docker would make a folder that is to be mounted and is missing.
# By --init, the SIGTERM of the time limit ends what is in the container, of which sh was else the first process.
image=@IMAGE@ flag=@FLAG@
away() { echo 'the image is not on the node'; exit 77; }
set -- @MOUNTS@
for m in "$@"; do
shift
[ ! -e "${m%%:*}" ] || set -- "$@" "$flag=$m"
done
@EXPORTS@
gpu=''; [ -e /dev/nvidiactl ] && gpu=1
case @TOOL@ in
docker)
docker image inspect "$image" >/dev/null 2>&1 || away
set -- docker run --rm --init --network=none ${gpu:+--gpus=all} "$@" --entrypoint=sh "$image" ;;
apptainer)
[ -e "$image" ] || away
tool=$(command -v apptainer || command -v singularity) || exit 127
set -- "$tool" exec ${gpu:+--nv} "$@" "$image" sh ;;
enroot)
[ -e "$image" ] || enroot list 2>/dev/null | grep -qxF -- "$image" || away
set -- enroot start "$@" "$image" sh ;;
esac
# An image may greet whoever enters it, at any length.
out=$({ "$@" -c @INSIDE@; echo "ck-exit $?"; } | sed -n 's/^ck-//p' | head -c 60000)
code=${out##*exit }
case $code in 0) ;; '' | *[!0-9]*) exit 1 ;; *) exit "$code" ;; esac
printf '%s\n' "$out" | sed -n 's/^look //p'
echo end
