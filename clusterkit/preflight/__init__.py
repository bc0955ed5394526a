"""Prove that every node is fit: collect through a transport, keep a bundle, judge it."""
