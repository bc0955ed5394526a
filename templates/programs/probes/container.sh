# shellcheck shell=sh disable=SC2194
# Nothing is pulled here: that a thousand nodes fetch an image at once is an outage of its own.
command -v @TOOL@ >/dev/null || { echo absent=1; echo end; exit 0; }
case @TOOL@ in
docker)
if output=$(docker version --format '{{.Server.Version}}' 2>&1); then echo "version=$output"
else echo "version="; echo "problem=$(echo "$output" | tail -n 1)"; fi
echo "digest=$(docker image inspect --format '{{.Id}}' @IMAGE@ 2>/dev/null)" ;;
enroot) echo "version=$(enroot version 2>/dev/null | tail -n 1)" ;;
*) echo "version=$(@TOOL@ --version 2>/dev/null | tail -n 1)" ;;
esac
# A whole image of 20 GB takes minutes to read, and from all nodes at once. Both of its ends hold
# what tells builds apart: the identity and creation time of a SIF, the table of a squashfs.
image=@IMAGE@
case @FORM@ in
file)
if [ -f "$image" ]; then
size=$(wc -c <"$image")
sum=$({ head -c 1048576 "$image"; tail -c 1048576 "$image"; } | sha256sum | cut -c 1-16)
echo "digest=$((size)) bytes, ends $sum"
else echo "digest="
fi ;;
name)
if enroot list 2>/dev/null | grep -qxF -- "$image"; then echo "digest=unpacked"
else echo "digest="
fi ;;
esac
echo "toolkit=$({ nvidia-container-cli --version || nvidia-ctk --version; } 2>/dev/null |
sed -n '1s/.*[ :] *//p')"
echo end
