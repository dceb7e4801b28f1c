"""Of joining a world."""
