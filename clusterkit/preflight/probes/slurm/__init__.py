"""What Slurm says of a partition."""
