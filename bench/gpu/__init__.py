"""What only a GPU tells: training against `estimate`, the cost of `submit` (docs/how-to/gpu.md)."""
