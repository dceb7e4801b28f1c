"""Hypothesis against every decision module."""
