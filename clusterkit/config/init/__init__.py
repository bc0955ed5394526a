"""Look at a machine and write its first `clusterkit.yaml`."""
