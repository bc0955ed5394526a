"""The run folder of a job: what each side writes there, and how it is read."""
