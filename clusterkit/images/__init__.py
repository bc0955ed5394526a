"""The images that jobs run in: one catalogue, and what derives from it."""
