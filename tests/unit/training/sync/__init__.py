"""Unit tests of semi-synchronous training."""
