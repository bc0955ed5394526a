"""Tests of `clusterkit.executors`."""
