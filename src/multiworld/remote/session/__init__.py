"""The master's end of one node: what is queued, sent, fetched, and what failed."""
