"""The state of a job, concluded from its run folder and its scheduler."""
