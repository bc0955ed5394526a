"""The topology of a node: links between GPUs and NICs, as `nvidia-smi topo` prints them."""
