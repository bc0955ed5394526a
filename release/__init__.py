"""What is done for a release, on the machine of whoever makes it."""
