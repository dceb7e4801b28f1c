"""Unit tests of replicas of several processes."""
