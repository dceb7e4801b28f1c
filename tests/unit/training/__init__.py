"""Tests of resilient training."""
