"""Tests of the formats of bodies."""
