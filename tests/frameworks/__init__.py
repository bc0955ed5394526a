"""Frameworks with large packages: each has its own virtual environment, `make test-frameworks`."""
