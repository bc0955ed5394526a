"""The GPUs and the networks between them that are known by name."""
