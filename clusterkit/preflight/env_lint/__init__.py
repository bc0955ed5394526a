"""Lint the variables of NCCL and its siblings (PyTorch, Gloo, UCX, RCCL, libfabric). Pure.

`sources.py` makes settings, `lint.py` evaluates them by the rules in `rules/`, and
`variables.tsv` is what is known of each name.
"""
