"""How a program gets its nodes from a launcher, or at their addresses: ``remote.connect()``."""
