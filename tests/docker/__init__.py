"""A Docker engine of the tests' own: dockerd by hand, a base image without a registry."""

from tests.docker.engine import Engine, EngineError

__all__ = ["Engine", "EngineError"]
