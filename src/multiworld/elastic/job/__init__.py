"""Decisions about a job: who is in it, what is started again after a failure, and what is said of it. Pure."""
