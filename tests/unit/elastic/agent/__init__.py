"""The agent of a host and its parts."""
