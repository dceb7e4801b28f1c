"""Of memory."""
