"""Tests of `clusterkit.jobs`."""
