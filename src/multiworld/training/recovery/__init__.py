"""Who is in the training: agreement after a loss, newcomers, and the state that they get."""
