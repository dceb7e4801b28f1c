"""Get the state of the others while this member takes part in what they do without it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...errors import WorldBrokenError, WorldClosedError
from ..recovery.team import Team
from ..recovery.transfer import DamagedStateError, Receiving
from .standing import Standing
from .synchronization import Advance
from .transfers import Transfers

logger = logging.getLogger(__name__)


class Newcomer:
    """A member that waits for ``Standing.receiving``."""

    def __init__(self, team: Team, standing: Standing, transfers: Transfers) -> None:
        self._team, self._standing, self._transfers = team, standing, transfers

    def get_state(self, is_here: Callable[[Receiving], bool], advance: Advance) -> bool:
        """Return whether this member has begun with the state; what counted since then is still to be applied.

        ``is_here``: takes part in a step or a round, and returns whether the state has come. If it raises, another
        generation is formed, which sends the state again.
        """
        receiving = self._standing.receiving
        assert receiving is not None
        try:
            if not is_here(receiving):
                return False
            self._transfers.take(receiving)
        except (WorldBrokenError, WorldClosedError) as error:
            advance(error)
            return False
        except DamagedStateError as error:
            logger.warning("%s; it is asked for again", error)
            self._team.world.abort()
            advance(None)
            return False
        self._standing.facts = []
        self._standing.receiving = None
        return True
