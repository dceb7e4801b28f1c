"""Tests of worlds, and of what their members tell each other."""
