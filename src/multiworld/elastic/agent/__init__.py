"""The agent of one host: it starts workers, watches them, starts dead ones again as ordered, and ends them."""
