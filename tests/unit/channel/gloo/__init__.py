"""Tests of the gloo channel."""
