"""Tests of `clusterkit.core`."""
