"""Lint the variables of NCCL and its siblings."""
