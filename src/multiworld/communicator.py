"""Where programs for multiworld 0.2.x import ``WorldCommunicator`` and ``BrokenWorldException`` from."""

from .compat.communicator import WorldCommunicator
from .errors import BrokenWorldException

__all__ = ["BrokenWorldException", "WorldCommunicator"]
