"""Tests of `clusterkit.config`."""
