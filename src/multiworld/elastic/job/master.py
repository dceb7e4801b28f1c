"""Decide which host serves the c10d store of a generation. Pure."""

from __future__ import annotations

from .actions import Action, Master, OpenMaster
from .nodes import Nodes

ORDER_S = 3.0  # an order has come, or is lost


class MasterHost:
    """The host that was asked to serve it, and where it does. Times are seconds of one monotonic clock."""

    def __init__(self, nodes: Nodes, now: float) -> None:
        self._nodes = nodes
        self._master: Master | None = None
        self._host: str | None = None
        self._asked_at = now

    def forget(self) -> None:
        """There is another generation."""
        self._master = self._host = None

    def opened(self, master: Master | None, generation: int) -> None:
        """A host says what it serves."""
        if master is not None and master.generation == generation:
            self._master = master

    def address(self, generation: int) -> tuple[str, int] | None:
        """Return where this generation's store is, once it is there."""
        if self._master is None or self._master.generation != generation:
            return None
        return self._master.address, self._master.port

    def ask_again(self, agent: str, generation: int, now: float, *, patience_s: float = ORDER_S) -> bool:
        """Whether that host was asked, and the order seems to be lost; then it is asked again."""
        is_lost = self._host == agent and self.address(generation) is None and now - self._asked_at > patience_s
        if is_lost:
            self._host = None
        return is_lost

    def provide(self, generation: int, now: float) -> list[Action]:
        """Have it served by a host that is there: the first, if it is."""
        agents = self._nodes.agents
        if self._host in agents or (self._host is None and self.address(generation) is not None):
            return []
        host = next((agent for agent in self._nodes.active if agent in agents), None)
        if host is None:
            return []
        self._master, self._host, self._asked_at = None, host, now
        return [OpenMaster(agent=host, generation=generation)]
