"""Unit tests of the controller and its decisions."""
