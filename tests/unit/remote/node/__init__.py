"""What a node does with commands."""
