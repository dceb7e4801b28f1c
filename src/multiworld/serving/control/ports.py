"""What the controller needs of the processes around it: hosts that start members, and a line to each member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..graces import GRACE_S
from ..hosts.order import Order
from ..hosts.recent_lines import LinesTold
from ..member.exit_status import Ending
from .orders import MemberOrder

__all__ = ["HostPort", "LinePort"]


class HostPort(Protocol):
    """A host process, while there is a connection to it. A lost one comes back as another object."""

    name: str
    address: str
    capacity: int
    pid: int
    is_stopping: bool
    process_space: str
    members: dict[str, int]
    on_exit: Callable[[str, Ending], None] | None
    on_started: Callable[[str, int], None] | None
    on_stopping: Callable[[], None] | None
    on_lost: Callable[[], None] | None

    async def start(self, order: Order) -> int:
        """Start a process and return its pid. Raises MultiworldError or OSError."""

    async def lines(self, member: str, *, since: int | None, last: int) -> LinesTold | None:
        """Return what a member wrote; None if the host does not know it. Raises OSError."""

    def kill(self, member: str) -> None: ...

    def signal(self, member: str, signum: int) -> None: ...

    def ask_to_stop(self, grace_s: float) -> None: ...

    async def stop(self, grace_s: float = GRACE_S) -> None: ...


class LinePort(Protocol):
    """How the controller tells a member something."""

    def send(self, order: MemberOrder) -> None:
        """Pass it on, in order; never blocks, and what cannot be delivered is dropped."""
