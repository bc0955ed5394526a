# shellcheck shell=sh
# Print two pairs for a folder: POSIX `df -P`, and `-i` apart, for not every df has it.
volume() {
row=$(df -Pk "$1" | tail -n 1) && [ -n "$row" ] || return 1
echo "kib=$row"
echo "inodes=$(df -Pi "$1" 2>/dev/null | tail -n 1)"
}
