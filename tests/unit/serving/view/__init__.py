"""Unit tests of serving's view in a terminal."""
