# shellcheck shell=sh
# Load an archive from the input into the Docker engine of a node: $1 is the format of a line about an
# image, $2 the name of the image, $3 what tells that the archive may come. All of this is read before
# it runs: what follows on its input is for docker. The sleep holds no stream of ours, so that the
# session ends when docker does.
{
LC_ALL=C; export LC_ALL
echo "$3"
# shellcheck disable=SC2217  # that sleep holds no stream is the point
{ while sleep 5 </dev/null >/dev/null 2>&1; do echo; done; } &
alive=$!
output=$(docker load --quiet 2>&1 >/dev/null); code=$?
kill $alive
[ $code = 0 ] || { printf '%s\n' "$output" >&2; exit 1; }
docker image inspect --format "$1" "$2"
exit
}
