"""Submitted jobs: find them again, conclude their state, follow their output, end them."""
