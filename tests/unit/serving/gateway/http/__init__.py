"""Tests of one HTTP connection and what it may use."""
