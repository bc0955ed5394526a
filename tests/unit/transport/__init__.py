"""Tests of `clusterkit.transport`."""
