"""Tests of one replica of a stage, without processes."""
