"""What `top` asks each node: the load of its CPUs, memory, disks, network and GPUs."""
