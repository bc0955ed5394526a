#!/bin/sh
# Accounting of the practice cluster, run on its head: accounting.sh mariadbd|register FOLDER.
# "mariadbd" makes the database if need be and starts its server; "register" starts nothing, but
# waits for slurmdbd and tells it of the cluster. Both return once Slurm can go on.
set -eu
folder=$2
config=$folder/mariadb.cnf
# Where slurmdbd looks, and in newer Debians below /run/mariadbd; /run is the host's own.
socket=/run/mysqld/mysqld.sock

start_database() {
    mkdir -p "${socket%/*}" && ln -sfn mysqld /run/mariadbd
    if [ ! -e "$folder/data" ]; then
        rm -rf "$folder/data.new"
        mkdir "$folder/data.new"
        # What mariadb-install-db does, without the help texts and accounts that take most of its time.
        {
            printf 'create database mysql;\nuse mysql;\n'
            cat /usr/share/mariadb/mariadb_system_tables.sql 2>/dev/null || # MariaDB 11
                cat /usr/share/mysql/mysql_system_tables.sql
            printf 'create database slurm_acct_db;\n'
        } | mariadbd --defaults-file="$config" --datadir="$folder/data.new" --bootstrap \
            >>"$folder/mariadbd.log" 2>&1
        mv "$folder/data.new" "$folder/data"
    fi
    rm -f "$socket"
    setsid mariadbd --defaults-file="$config" --datadir="$folder/data" --socket="$socket" \
        </dev/null >>"$folder/mariadbd.log" 2>&1 &
    until [ -S "$socket" ]; do
        kill -0 $! 2>/dev/null || fail "mariadbd has ended: $(tail -n 5 "$folder/mariadbd.log")"
        sleep 0.05
    done
}

register_cluster() {
    tries=0
    until known=$(sacctmgr --noheader --parsable2 list cluster format=cluster 2>&1); do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || fail "slurmdbd does not answer: $known"
        sleep 0.05
    done
    # Brings the account and the user root with it.
    [ "$known" = lab ] || sacctmgr --immediate --quiet add cluster lab
}

fail() {
    echo "$1" >&2
    exit 1
}

case $1 in
    mariadbd) start_database ;;
    register) register_cluster ;;
esac
