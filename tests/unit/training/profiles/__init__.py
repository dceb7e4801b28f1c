"""Tests of measuring layers."""
