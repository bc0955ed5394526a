"""The version of clusterkit, which the build reads as well."""

__version__ = "0.1.0"
