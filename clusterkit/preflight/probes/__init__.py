"""What is asked of a node: one small file a probe, with a constant `PROBE` (or several).

Adding a probe touches no other file: a check that names it makes it run.
"""
