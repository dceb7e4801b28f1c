"""The part of torchrun's own agents."""
