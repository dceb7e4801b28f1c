"""Tests of channels over message streams."""
