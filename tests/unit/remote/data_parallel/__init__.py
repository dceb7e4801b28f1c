"""Tests of data parallel training on several nodes."""
