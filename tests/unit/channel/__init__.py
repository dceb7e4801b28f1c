"""Tests of channels."""
