"""Have all parts of a sharded state begin with the same checkpoint, where nobody has any state."""

from __future__ import annotations

from collections.abc import Callable

from ...world.world import World
from ..replica.replica import Replica
from ..state import TrainingState
from .commit import exchange
from .facts import Facts

Restart = Callable[[int | None], None]
"""Loads the newest checkpoint, of no later step than that; see ``CheckpointKeeper.restart``."""


def restart_alike(world: World, replica: Replica, state: TrainingState, restart: Restart, *, is_source: bool) -> None:
    """Load this process's part; if another one's newest checkpoint is damaged or missing, all take an older one.

    All members of the world call it; ``is_source``: this one loads. Raises the world's error, and what ``restart``
    does.
    """
    most: int | None = None
    while True:
        if is_source and (most is None or state.step > most):
            restart(most)
        own = Facts(step=state.step, is_ready=is_source)
        facts = replica.as_one(lambda own=own: exchange(world, own))  # type: ignore[misc]
        steps = [each.step for each in facts if each.is_ready]
        most = min(steps)
        if max(steps) == most:
            return
