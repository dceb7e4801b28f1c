"""Of a world as PyTorch knows groups."""
