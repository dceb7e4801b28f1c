"""Every program under examples/ runs and prints what it should."""
