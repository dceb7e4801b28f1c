"""Capture what a program does on a node, and run it again as one message."""
