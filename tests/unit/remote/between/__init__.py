"""Tests of what nodes do with each other."""
