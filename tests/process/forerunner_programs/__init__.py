"""Programs as people wrote them for multiworld 0.2.x: they use nothing that came later, and run here unchanged."""
