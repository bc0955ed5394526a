"""Tests of `clusterkit.observe`."""
