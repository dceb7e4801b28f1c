"""Follows a module through an example, and returns the graph of its operations."""
