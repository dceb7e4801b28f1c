"""Worlds: process groups that fail one by one, and who of their members is alive."""
