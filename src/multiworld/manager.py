"""Where programs for multiworld 0.2.x import ``WorldManager`` from."""

from .world.manager import WorldManager

__all__ = ["WorldManager"]
