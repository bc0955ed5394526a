"""Tests of `clusterkit.cli`."""
