"""What a message carries: tensors or a few bytes, and how both look on the wire."""
