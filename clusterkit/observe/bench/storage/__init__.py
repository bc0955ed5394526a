"""How fast the nodes of a job write and read checkpoints, and how often to write one."""
