"""Of the links between processes."""
