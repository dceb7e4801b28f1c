"""Tests of data, exactly once."""
