"""Tests of `clusterkit.images`."""
