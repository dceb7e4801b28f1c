"""Where programs for multiworld 0.2.x import ``WatchDog`` from."""

from .compat.manager import WatchDog

__all__ = ["WatchDog"]
