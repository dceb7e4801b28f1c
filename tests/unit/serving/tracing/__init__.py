"""Unit tests of serving's traces."""
