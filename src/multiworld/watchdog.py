"""Where programs for multiworld 0.2.x import ``WatchDog`` from."""

from .compat.watchdog import WatchDog

__all__ = ["WatchDog"]
