"""Memory: copies of it, memory that two processes share, and waiting for a word in it."""
