"""Unit tests of serving hosts."""
