"""The master's end of what nodes do with each other: the worlds that they share, copies, collectives."""
