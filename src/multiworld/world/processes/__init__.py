"""Processes of this host: do they run, are they stopped; and those that this process keeps beside it."""
