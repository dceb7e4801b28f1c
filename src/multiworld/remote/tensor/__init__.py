"""Tensors that live on a node, as the master sees them."""
