"""Decide which members a deployment has: on which host, with which edges, and what happens when one is lost. Pure."""
