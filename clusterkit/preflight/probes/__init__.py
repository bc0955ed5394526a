"""What is asked of a node: one small file a probe, with a constant `PROBE` (or several).

No other module has to know a new probe: a check that names it makes it run.
"""
