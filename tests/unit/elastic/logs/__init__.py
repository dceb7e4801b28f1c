"""Unit tests of what workers print."""
