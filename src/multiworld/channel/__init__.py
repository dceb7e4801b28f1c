"""Channels: what moves tensors between the ranks of one world."""
