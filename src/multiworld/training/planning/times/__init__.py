"""Exact times and lower bounds of many pipelines at once."""
