"""Unit tests of agreement and recovery in training."""
