"""Text for terminals: what it may hold, and lists in sentences."""
