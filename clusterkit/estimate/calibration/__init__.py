"""What one measured step says of everything else on the same cluster."""
