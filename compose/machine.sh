#!/bin/bash
# machine ROLE: make a container one machine of a practice cluster, and run its service for ever.
# Roles: login, ssh (a host of the rack), node, slurmctld, slurmdbd, db.
#
# What the machines must have in common is made once, by whoever comes first: keys and the password
# of the database in /cluster, the home of the user train in /home/train, both shared volumes.
set -euo pipefail
umask 022

readonly shared=/cluster home=/home/train
role=${1:?machine ROLE}

say() { echo "machine: $*"; }

make_secrets() {
  if [[ -e $shared/done ]]; then return; fi
  head -c 128 /dev/urandom >"$shared/munge.key"
  head -c 18 /dev/urandom | base64 | tr +/ -_ >"$shared/db-password"
  rm -f "$shared"/ssh_host_key* "$shared"/id_ed25519*
  ssh-keygen -q -t ed25519 -N '' -C practice -f "$shared/ssh_host_key"
  ssh-keygen -q -t ed25519 -N '' -C train -f "$shared/id_ed25519"
  chmod 600 "$shared"/{munge.key,db-password,ssh_host_key,id_ed25519}
  touch "$shared/done"
}

make_home() {
  if [[ -e $home/.ssh/authorized_keys ]]; then return; fi
  cp -rn /etc/skel/. /opt/home/. "$home"
  install -d -m 700 "$home/.ssh"
  install -m 600 "$shared/id_ed25519" "$home/.ssh/id_ed25519"
  install -m 600 "$shared/id_ed25519.pub" "$home/.ssh/authorized_keys"
  chown -R train: "$home"
}

# Who may come in from outside can change with every start.
admit() {
  if [[ -z ${AUTHORIZED_KEY:-} ]]; then return; fi
  if grep -qxF "$AUTHORIZED_KEY" "$home/.ssh/authorized_keys"; then return; fi
  echo "$AUTHORIZED_KEY" >>"$home/.ssh/authorized_keys"
}

prepare() {
  install -d -m 711 "$shared"
  exec 9>"$shared/lock"
  flock 9
  make_secrets
  if [[ -d $home ]]; then
    make_home
    admit
  fi
  exec 9>&-
}

start_munge() {
  install -m 400 -o munge -g munge "$shared/munge.key" /etc/munge/munge.key
  install -d -m 755 -o munge -g munge /run/munge
  setpriv --reuid=munge --regid=munge --clear-groups munged
}

ssh_command() {
  echo "* $(cut -d' ' -f1,2 "$shared/ssh_host_key.pub")" >/etc/ssh/ssh_known_hosts
  mkdir -p /run/sshd
  usermod --password '*' train # no password fits; "!" would lock the account, keys included
  # The environment of a login is that of the image, without a shell that reads /etc/profile.
  sshd=(
    /usr/sbin/sshd -D -e
    -o HostKey="$shared/ssh_host_key" -o PidFile=none -o UsePAM=no -o UseDNS=no
    -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no -o PermitRootLogin=no
    -o SetEnv="PATH=$PATH"
    # The default drops connections of a wide fan-out.
    -o MaxStartups=500:30:600
  )
}

wait_for() {
  local what=$1
  shift
  for ((i = 0; i < 120; i++)); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.5
  done
  say "$what does not answer" >&2
  exit 1
}

prepare
case $role in
login)
  start_munge
  ssh_command
  exec "${sshd[@]}"
  ;;
ssh)
  ssh_command
  exec "${sshd[@]}"
  ;;
node)
  start_munge
  ssh_command
  "${sshd[@]}" &
  for i in 0 1 2 3; do
    [[ -e /dev/pretended-gpu$i ]] || mknod -m 600 "/dev/pretended-gpu$i" c 1 3
  done
  install -d /var/lib/slurm/slurmd
  exec slurmd -D
  ;;
slurmctld)
  start_munge
  install -d -o slurm -g slurm /run/slurm /var/lib/slurm/slurmctld
  # Without a cluster in the database there are no tables to write jobs to.
  wait_for slurmdbd sacctmgr --noheader list cluster
  if [[ -z $(sacctmgr --noheader list cluster practice) ]]; then
    sacctmgr --immediate --quiet add cluster practice
    sacctmgr --immediate --quiet add account research
    sacctmgr --immediate --quiet add user train account=research
  fi
  exec setpriv --reuid=slurm --regid=slurm --init-groups slurmctld -D
  ;;
slurmdbd)
  start_munge
  install -d -o slurm -g slurm /run/slurm
  umask 077
  grep -v ^StoragePass= /etc/slurm/slurmdbd.conf >/run/slurm/slurmdbd.conf
  echo "StoragePass=$(<"$shared/db-password")" >>/run/slurm/slurmdbd.conf
  install -m 600 -o slurm -g slurm /run/slurm/slurmdbd.conf /etc/slurm/slurmdbd.conf
  exec setpriv --reuid=slurm --regid=slurm --init-groups slurmdbd -D
  ;;
db)
  install -d -o mysql -g mysql /var/lib/mysql
  if [[ ! -d /var/lib/mysql/mysql ]]; then
    # What mariadb-install-db does, which needs the client's programs, and makes accounts and help.
    { printf 'create database mysql;\nuse mysql;\n' && cat /usr/share/mysql/mysql_system_tables.sql; } |
      mariadbd --user=mysql --datadir=/var/lib/mysql --bootstrap
  fi
  install -d -o mysql -g mysql /run/mysqld
  password=$(<"$shared/db-password")
  cat >/run/mysqld/init.sql <<SQL
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS slurm IDENTIFIED BY '$password';
GRANT ALL ON slurm_acct_db.* TO slurm;
SQL
  chown mysql: /run/mysqld/init.sql
  chmod 400 /run/mysqld/init.sql
  rm -f /run/mysqld/mysqld.sock # of an earlier start: its presence says that the server is ready
  exec mariadbd --user=mysql --datadir=/var/lib/mysql --init-file=/run/mysqld/init.sql \
    --innodb-lock-wait-timeout=900 --skip-name-resolve
  ;;
*)
  say "no such role: $role" >&2
  exit 2
  ;;
esac
