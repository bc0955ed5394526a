"""What a node's GPUs, their driver and the kernel's log say."""
