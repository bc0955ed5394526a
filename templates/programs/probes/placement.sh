# shellcheck shell=sh
# A machine asks only the cloud that its firmware names; nobody vouches for what answers.
# An empty header is none to curl, and only with -L is the page of a redirection no answer.
says() { v='' && { read -r v <"${CLUSTERKIT_MACHINE_ROOT-}/sys/class/dmi/id/$1"; } 2>/dev/null && [ "$v" = "$2" ]; }
ask() {
curl -q -sfL --max-redirs 0 --noproxy '*' -m 1 -H "X-aws-ec2-metadata-token: $token" "$@" 2>/dev/null |
head -c 3000 | tr -d '\r\n'
}
# What is said may be JSON, of whose escapes some echo makes lines.
tell() { printf '%s\n' "$1"; }
cloud=''
@SIGNS@
[ -n "$cloud" ] || { echo 'no cloud is known of'; exit 77; }
command -v curl >/dev/null || { echo 'curl: not found'; exit 127; }
server=http://169.254.169.254 token=''
[ "$cloud" != aws ] ||
token=$(ask -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$server/latest/api/token")
echo "cloud=$cloud"
@QUESTIONS@
echo end
