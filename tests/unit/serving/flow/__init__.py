"""Tests of how requests travel between members, without processes."""
