"""Checkpoints that cost the training nothing, and are read only when they are whole."""
