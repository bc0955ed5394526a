"""The figures of jobs and nodes in Prometheus' text format."""
