#!/bin/bash
# Boots a cloud node of the practice cluster, and stops it, as its file says: powered.sh FILE
# Its name among processes is "powered", by which the lab knows that it runs.
[ "$0" = powered ] || exec -a powered bash -c '. "$1"' powered "$0" "$1" </dev/null >/dev/null 2>&1
file=$2
while :; do
    words=
    if [ -s "$file" ]; then # a word that comes between the two would be lost
        words=$(exec 9>"$file.lock" && flock 9 && cat "$file" && rm "$file")
    fi
    for word in $words; do
        case $word in
        resume)
            sleep 2 # slurmctld takes one that boots within the second for one that has not booted
            # one that boots when it has been called off would be up, and Slurm not know why
            [ "${words##* }" != "$word" ] || [ -s "$file" ] || slurmd -b
            ;;
        suspend) pkill -x slurmd ;;
        esac
    done
    sleep 0.2
done
