"""`estimate`: its flags, and how its answers are printed."""
