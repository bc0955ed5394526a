"""Bring an image to the nodes: only the layers that they lack."""
