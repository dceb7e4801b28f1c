"""Tests of the collective algorithms."""
