"""What a message stream tells the channel that it belongs to."""

from __future__ import annotations

from .message import Receive


class StreamOwner:
    """What a stream tells its channel. All are called with nothing held. This one does nothing."""

    def __init__(self, world: str, generation: int) -> None:
        self.world, self.generation = world, generation

    def stream_lost(self, rank: int, reason: str) -> None:
        """The connection ended without a BYE."""

    def stream_failed(self, rank: int, reason: str) -> None:
        """As ``stream_lost``, but for a reason that lies in this process: ``reason`` is what this rank has done."""

    def stream_asked(self, rank: int, seq: int, signature: bytes) -> None:
        """The peer waits in the collective of that number, which is ``signature`` there."""

    def stream_stuck(self, rank: int, name: str) -> None:
        """A cancelled operation of that name can be stopped only by breaking the world (a ``MovingStream``)."""

    @property
    def wants_any(self) -> bool:
        """Whether a receive from any rank waits."""
        return False

    def take_any(self, rank: int, key: int) -> Receive | None:
        """Return a receive from any rank for a message of this one; it is that stream's from now on.

        Called with the read side held.
        """
        return None
