"""Which samples a step has, and how they are loaded: positions of samples, exactly once."""
