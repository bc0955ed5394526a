#!/bin/sh
# The first process of a container, below its init: inside.sh COMMAND...
# Notices of a time limit are for ranks that handle them, and must not end their launcher.
trap '' USR1 USR2
# A container is no child of the node script, and would outlive one that is killed. Only where its
# processes are all there are in their namespace: elsewhere this would end those of the user.
if [ "$(readlink /proc/self/ns/pid)" != "$CK_PID_NAMESPACE" ] && [ -p "$CK_TMP/life" ]; then
  ( (
    read -r _ <"$CK_TMP/life"
    kill -s KILL -- -1
  ) </dev/null >/dev/null 2>&1 &)
else
  echo $$ >"$CK_TMP/pid"
fi
cd "$CK_WORKDIR" || exit 125
if [ -n "$CK_GPUS" ] && command -v python3 >/dev/null; then
  python3 "$CK_TMP/look.py" "$CK_GPUS" "$CK_DRIVER" || true
fi
exec "$@"
