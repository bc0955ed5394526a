"""How the nodes of a running job know of each other, without a scheduler's help."""
