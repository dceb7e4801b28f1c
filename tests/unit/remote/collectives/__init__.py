"""Tests of collectives of several nodes."""
