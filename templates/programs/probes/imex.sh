# shellcheck shell=sh
f=/dev/nvidia-caps-imex-channels/channel0
if [ -r "$f" ] && [ -w "$f" ]; then echo channel=open
elif [ -e "$f" ]; then echo channel=denied
else echo channel=absent; fi
# Its own tool says whether all nodes are there; it may be closed to users.
state=$(nvidia-imex-ctl -q 2>/dev/null | head -n 1)
[ -n "$state" ] || state=$(systemctl is-active nvidia-imex 2>/dev/null)
echo "state=$state"
echo "nodes=$(sed 's/#.*//' /etc/nvidia-imex/nodes_config.cfg 2>/dev/null | tr -s '[:space:]' ' ' | head -c 3600)"
echo end
