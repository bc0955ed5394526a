"""What `diagnose` prints, and what other verbs tell of a job that failed."""
