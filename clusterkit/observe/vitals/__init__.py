"""What nodes are doing now: one reading of each, and what two of them say together."""
