"""Unit tests of the engine of training."""
