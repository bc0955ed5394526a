"""`images` and its verbs."""
