"""Tensors of a node in this process."""
