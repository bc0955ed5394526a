#!/bin/bash
# Boots a cloud node of the practice cluster, and stops it, as its file says: powered.sh FILE
# Its name among processes is "powered", by which the lab knows that it runs.
[ "$0" = powered ] || exec -a powered bash -c '. "$1"' powered "$0" "$1" </dev/null >/dev/null 2>&1
file=$2
while :; do
    word=
    if [ -s "$file" ]; then
        word=$(cat "$file")
        rm -f "$file"
    fi
    case $word in
    resume)
        sleep 2 # slurmctld takes one that boots within the second for one that has not booted yet
        slurmd -b
        ;;
    suspend) pkill -x slurmd ;;
    esac
    sleep 0.2
done
