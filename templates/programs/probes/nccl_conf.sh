# shellcheck shell=sh
# NCCL reads NCCL_CONF_FILE instead of the first file, and does not expand a ~ in it.
for f in @OWN@ /etc/nccl.conf
do
[ -f "$f" ] && [ -r "$f" ] || continue
echo "file $f"
sed 's/^/ /' "$f"
done
