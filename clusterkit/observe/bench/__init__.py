"""Measure what a cluster delivers: all-reduce, and scaling over nodes."""
