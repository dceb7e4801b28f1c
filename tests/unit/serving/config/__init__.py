"""Unit tests of deployment files."""
