"""Collectives of tensors that live on several nodes."""
