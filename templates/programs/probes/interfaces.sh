# shellcheck shell=sh
cd /sys/class/net 2>/dev/null || { echo 'no /sys/class/net'; exit 77; }
for i in *
do
[ -e "$i/operstate" ] || continue
v=; { IFS= read -r v <"$i/operstate"; } 2>/dev/null || :
echo "interface|$i|$v"
done
if command -v ip >/dev/null
then ip -o addr show | awk '{ print "address|" $2 "|" $4 }'
else echo 'no ip'
fi
