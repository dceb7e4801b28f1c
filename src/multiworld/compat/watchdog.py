"""The watchdog of multiworld 0.2.x, as a view: which worlds of a manager are watched, and what broke the others."""

from __future__ import annotations

from ..errors import WorldBrokenError
from ..world.manager import WorldManager
from ..world.state import WorldState


class WatchDog:
    """Shows what the failure detection of one manager sees.

    It detects nothing itself. Detection belongs to the links between the processes and is always on, whatever
    ``enable_monitor`` says: without it an operation could hang. A watchdog runs no thread and ends no process.
    """

    def __init__(self, manager: WorldManager) -> None:
        self._manager = manager

    def __repr__(self) -> str:
        return f"<WatchDog of {len(self.watched)} worlds, {len(self.broken)} broken>"

    @property
    def watched(self) -> list[str]:
        """The names of the worlds whose members are being watched."""
        return [name for name, world in self._manager.worlds.items() if world.state is WorldState.ACTIVE]

    @property
    def broken(self) -> dict[str, WorldBrokenError]:
        """What broke each broken world, until it is removed or formed again."""
        return {name: world.error for name, world in self._manager.worlds.items() if world.error is not None}
