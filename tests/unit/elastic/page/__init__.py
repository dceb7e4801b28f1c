"""Unit tests of the launcher's page."""
