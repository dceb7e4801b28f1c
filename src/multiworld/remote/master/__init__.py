"""The nodes of a master: how they are reached, started and replaced."""
