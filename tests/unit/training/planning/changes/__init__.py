"""Tests of changes of plans."""
