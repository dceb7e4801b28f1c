"""Processes on one host, and what ends them."""
