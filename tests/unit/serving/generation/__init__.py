"""Unit tests of text generation."""
