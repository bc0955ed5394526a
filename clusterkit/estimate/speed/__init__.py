"""How long a step of a setup takes: computing, transfers, what is not on the GPU."""
