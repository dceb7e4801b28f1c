"""Tests of what goes wrong in a training without a death."""
