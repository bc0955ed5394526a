"""Run a script at several sizes and tell how well it scales, and why not better."""
