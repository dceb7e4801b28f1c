"""Orders of operations other than 1F1B's."""
