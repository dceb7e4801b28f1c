"""Decisions about a job."""
