"""Of the operations on a world."""
