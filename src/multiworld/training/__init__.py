"""Resilient training: replicas that keep training while processes die."""
