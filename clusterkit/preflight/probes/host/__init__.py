"""What a node says of its system, limits, disks and Python."""
