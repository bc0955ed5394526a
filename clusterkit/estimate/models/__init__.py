"""The shapes of models: known by name or size, read from a config.json, traced from a module."""
