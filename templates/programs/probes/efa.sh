# shellcheck shell=sh
pci=0 bound=0 usable=0
of_amazon() { v='' && read -r v <"$1/vendor" && [ "$v" = 0x1d0f ]; }
for d in /sys/bus/pci/devices/*; do
  { of_amazon "$d" && read -r v <"$d/device"; } 2>/dev/null || continue
  case $v in 0xefa*) pci=$((pci + 1));; esac
done
[ "$pci" -gt 0 ] || { echo 'no EFA device'; exit 77; }
for d in /sys/class/infiniband/*; do of_amazon "$d/device" 2>/dev/null && bound=$((bound + 1)); done
for f in /dev/infiniband/uverbs*; do [ -r "$f" ] && [ -w "$f" ] && usable=$((usable + 1)); done
printf 'pci=%s\nbound=%s\nusable=%s\n' "$pci" "$bound" "$usable"
PATH=$PATH:/opt/amazon/efa/bin
command -v fi_info >/dev/null || { echo 'provider=unknown'; echo end; exit 0; }
if fi_info -p efa -t FI_EP_RDM >/dev/null 2>&1; then echo 'provider=there'; else echo 'provider=absent'; fi
echo end
