"""What a node says of its interfaces and adapters, and what crosses its links."""
