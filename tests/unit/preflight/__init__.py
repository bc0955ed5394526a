"""Tests of `clusterkit.preflight`."""
