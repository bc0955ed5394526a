"""Names of hosts: Slurm's hostlists, and hostfiles."""
