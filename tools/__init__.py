"""What a checkout is set up with."""
