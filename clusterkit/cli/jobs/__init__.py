"""The verbs of jobs, from `render` and `submit` to `cancel`."""
