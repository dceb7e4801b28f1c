"""Reaching nodes, without processes."""
