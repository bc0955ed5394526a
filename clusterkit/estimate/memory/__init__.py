"""How much memory a setup needs on the GPU that needs most, phase by phase."""
