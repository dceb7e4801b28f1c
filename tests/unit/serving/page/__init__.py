"""Unit tests of serving's page."""
