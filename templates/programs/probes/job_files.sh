# shellcheck shell=sh
set -- @FILES@
for f in "$@"; do
  if [ -f "$f" ] && [ -r "$f" ]; then echo "file $(head -c 1048576 "$f" | cksum | tr ' ' -) $f"
  elif [ -d "$f" ] && [ -x "$f" ]; then echo "folder - $f"
  elif [ -e "$f" ]; then echo "unreadable - $f"
  else echo "absent - $f"; fi
done
echo end
