"""Where programs for multiworld 0.0.x import ``WorldManager`` from."""

from .compat.manager import WorldManager

__all__ = ["WorldManager"]
