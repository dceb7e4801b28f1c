"""How agents find each other."""
