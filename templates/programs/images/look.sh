# shellcheck shell=sh
# What the Docker engine of a node has of an image: $1 and $2 are the formats of a line about an image
# and about its layers, $3 is its name, $4 its digest.
{
LC_ALL=C; export LC_ALL
docker version --format 'engine={{.Server.Arch}}' || exit
docker image inspect --format "named=$1" "$3" 2>/dev/null
docker image inspect --format "there=$1" "$4" 2>/dev/null
all=$(docker image ls --all --quiet --no-trunc | sort -u)
# shellcheck disable=SC2086  # one word for each image
[ -z "$all" ] || docker image inspect --format "layers=$2" $all 2>/dev/null
root=$(docker info --format '{{.DockerRootDir}}')
df -Pk "$root" 2>/dev/null | awk 'NR == 2 { print "free=" $4 }'
echo end=
exit
}
