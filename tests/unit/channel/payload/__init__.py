"""Tests of what a message carries."""
