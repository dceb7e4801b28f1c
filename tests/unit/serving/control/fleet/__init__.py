"""Unit tests of the decisions about the members of a deployment."""
