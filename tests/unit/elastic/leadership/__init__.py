"""Which agent coordinates."""
