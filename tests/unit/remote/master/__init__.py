"""Nodes of a master, without processes."""
