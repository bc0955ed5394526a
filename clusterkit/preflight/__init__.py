"""Prove that every node is healthy: collect through a transport, keep a bundle, evaluate it."""
