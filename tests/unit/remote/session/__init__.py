"""The master's end of one node."""
