"""What programs for multiworld 0.0.x and 0.2.x call, on top of today's manager of worlds."""
