"""Real workers on loopback that are killed, stopped or cut off in the middle of an operation."""
