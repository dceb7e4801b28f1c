"""Of one connection."""
