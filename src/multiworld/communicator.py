"""Where programs for multiworld 0.2.x import ``WorldCommunicator`` and ``BrokenWorldException`` from."""

from .errors import BrokenWorldException
from .world.communicator import WorldCommunicator

__all__ = ["BrokenWorldException", "WorldCommunicator"]
