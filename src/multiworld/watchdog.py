"""Where programs for multiworld 0.2.x import ``WatchDog`` from."""

from .world.watchdog import WatchDog

__all__ = ["WatchDog"]
