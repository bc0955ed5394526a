"""Run one script on many nodes and bring its answers back: by ssh, by srun, or right here."""
