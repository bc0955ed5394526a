"""Tests of `clusterkit.api`."""
