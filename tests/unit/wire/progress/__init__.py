"""Of the progress thread and its operations."""
