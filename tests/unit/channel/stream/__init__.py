"""Tests of message streams."""
