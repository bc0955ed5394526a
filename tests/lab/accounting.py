"""Accounting for the practice cluster: slurmdbd, and a MariaDB server of its own.

Both live on the head. The database is in the lab folder, its socket in the host's private
/run, and it has no port, so nothing outside the head reaches it: access rights are left out.

Traps that shaped these files (Slurm 22.05, MariaDB 10.11):

- slurmdbd reads ``slurmdbd.conf`` beside the file of ``SLURM_CONF``, and only where nobody
  else may read it.
- slurmdbd is in the background before it listens, and a slurmctld whose cluster it does not
  know has no tables to write to: the cluster is registered in between.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.layout import HEAD, write_changed

if TYPE_CHECKING:
    from tests.lab.layout import Layout

TOOLS = ("slurmdbd", "mariadbd", "sacctmgr", "sacct")
SCRIPT = Path(__file__).with_name("accounting.sh")

WITHOUT = """\
AccountingStorageType=accounting_storage/none
MinJobAge=300
"""

# slurmctld forgets jobs as soon as it ever does (it looks every ten seconds or so): from then
# on sacct alone can tell of them.
WITH = f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={HEAD}
MinJobAge=2
"""

SLURMDBD_CONF = """\
AuthType=auth/{auth}
DbdHost={head}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
"""

# Nothing here outlives the lab, so no write waits for a disk; but what was committed survives the
# end of mariadbd, and that takes 2 and not 0.
MARIADB_CNF = """\
[mariadbd]
user=root
skip-networking
skip-grant-tables
performance-schema=off
innodb-flush-log-at-trx-commit=2
innodb-doublewrite=off
innodb-use-native-aio=off
innodb-log-file-size=4M
innodb-buffer-pool-size=64M
innodb-lock-wait-timeout=900
"""


def write_accounting(layout: Layout, *, auth: str) -> None:
    """Write the configuration of slurmdbd and of the database."""
    folder = layout.host_dir(HEAD)
    folder.mkdir(parents=True, exist_ok=True)
    write_changed(folder / "mariadb.cnf", MARIADB_CNF)
    config = layout.slurm_conf.with_name("slurmdbd.conf")
    config.touch(mode=0o600)
    write_changed(config, SLURMDBD_CONF.format(head=HEAD, folder=folder, auth=auth))


def daemons(layout: Layout) -> dict[str, list[str]]:
    """Return program name -> command line of what the head runs before slurmctld, in order.

    ``register`` is no program: that step is done every time, and changes nothing once done.
    """
    folder = str(layout.host_dir(HEAD))
    return {
        "mariadbd": ["sh", str(SCRIPT), "mariadbd", folder],
        "slurmdbd": ["slurmdbd"],
        "register": ["sh", str(SCRIPT), "register", folder],
    }
