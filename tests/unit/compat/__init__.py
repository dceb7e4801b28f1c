"""Tests of the calls of multiworld 0.0.x and 0.2.x."""
