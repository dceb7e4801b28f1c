"""Data parallel training on several nodes, from one script."""
