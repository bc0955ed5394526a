"""Tests of `clusterkit.launch`."""
