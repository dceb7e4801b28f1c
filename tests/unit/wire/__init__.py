"""Of the layer that moves bytes."""
