"""Unit tests of what members write."""
