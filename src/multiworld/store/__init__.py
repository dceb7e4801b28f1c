"""Small key-value stores that introduce the members of a world to each other. They are not needed to keep it."""
