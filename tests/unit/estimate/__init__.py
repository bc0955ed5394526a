"""Tests of `clusterkit.estimate`."""
