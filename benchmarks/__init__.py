"""Benchmarks that run for minutes; ``multiworld bench`` holds the short ones."""
