"""Tests that need no practice cluster and no Docker engine, by room of clusterkit."""
