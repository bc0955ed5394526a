"""The topology of a node: links between GPUs and NICs, as `nvidia-smi topo -m` prints them."""
