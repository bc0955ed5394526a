"""Jobs of Slurm, submitted as the text that `render` shows."""
