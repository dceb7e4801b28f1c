"""Tests of the recovery of nodes."""
