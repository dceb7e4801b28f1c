"""How another process finds a running deployment and asks its controller."""
