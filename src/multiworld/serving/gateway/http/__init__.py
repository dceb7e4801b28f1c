"""One HTTP connection and what it may use: bodies, compression, memory, time."""
