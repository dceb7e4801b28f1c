"""Unit tests of a split backward."""
