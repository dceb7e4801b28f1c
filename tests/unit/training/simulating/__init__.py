"""Tests of replaying failures."""
