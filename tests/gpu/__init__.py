"""What only a machine with an NVIDIA GPU can prove (`make test-gpu`, docs/how-to/gpu.md)."""
