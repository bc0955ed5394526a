"""Tensor, context, expert, data and pipeline parallel ranks: which sits where, near to whom."""
