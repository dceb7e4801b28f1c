"""Tests of where requests enter a pipeline, without processes."""
