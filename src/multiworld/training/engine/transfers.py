"""The transfers of the state in which this member takes part: to newcomers, and to itself as one of them."""

from __future__ import annotations

from typing import Any, Protocol

from ...errors import WorldBrokenError, WorldClosedError
from ..recovery.team import Team
from ..recovery.transfer import DamagedStateError
from ..state import TrainingState


class Incoming(Protocol):
    """See ``Receiving``."""

    @property
    def num_sources(self) -> int: ...

    @property
    def took_s(self) -> float: ...

    def poll(self) -> bool: ...

    def wait(self) -> None: ...

    def state(self, templates: Any) -> tuple[Any, int]: ...


class Outgoing(Protocol):
    """See ``Sending``."""

    @property
    def is_done(self) -> bool: ...

    def wait(self) -> None: ...


class Received(Protocol):
    """Hears of each state with which this member begins. Must be quick."""

    def __call__(self, step: int, size_bytes: int, sources: int, took_s: float) -> None: ...


def tell_nobody(step: int, size_bytes: int, sources: int, took_s: float) -> None:
    pass


class Transfers:
    """Of the present generation: its world carries them, so they end with it. Belongs to the training thread."""

    def __init__(self, team: Team, state: TrainingState, received: Received = tell_nobody) -> None:
        self._team, self._state, self._received = team, state, received
        self._sendings: list[Outgoing] = []

    def clear(self) -> None:
        self._sendings.clear()

    def send(self, sending: Outgoing) -> None:
        """Keep it until it is done."""
        self._sendings.append(sending)

    def forget_sent(self) -> None:
        self._sendings = [each for each in self._sendings if not each.is_done]

    def wait_until_sent(self) -> None:
        """Raises the world's error."""
        for sending in self._sendings:
            sending.wait()

    def has_come(self, receiving: Incoming, *, wait: bool = False) -> bool:
        """Return whether the whole state is here, in all processes of the replica. Raises if it cannot come to one."""
        team = self._team
        is_here, error = False, None
        try:
            if wait:
                receiving.wait()
            is_here = receiving.poll()
        except (WorldBrokenError, WorldClosedError, DamagedStateError) as raised:
            error = raised
        if not team.replica.all_true(error is None):
            team.world.abort()
            raise error or WorldClosedError(team.world.name, team.world.generation)
        return team.replica.all_true(is_here)

    def take(self, receiving: Incoming) -> None:
        """Begin with the state that has come."""
        state, size_bytes = receiving.state(self._state.capture())
        self._state.restore(state)
        self._received(self._state.step, size_bytes, receiving.num_sources, receiving.took_s)
