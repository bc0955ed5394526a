"""Configuration: the layers of settings, each value with the place it came from."""
