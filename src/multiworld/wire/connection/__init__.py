"""One framed connection: how it reads and writes, and what its frames and records look like."""
