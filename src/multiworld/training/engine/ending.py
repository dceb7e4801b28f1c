"""The end of a training: wait for those that were lost shortly before, hand over, and say that it is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ...errors import WorldBrokenError, WorldClosedError
from ..recovery.team import Team
from .commit import exchange
from .facts import Facts
from .transfers import Transfers

logger = logging.getLogger(__name__)

LINGER_S = 10.0  # for a lost replica to come back before the training ends; the launcher starts it within 1 s or so
LOOK_S = 0.05


class Ending:
    """``num_wanted``: how many members the launcher starts at present."""

    def __init__(self, team: Team, transfers: Transfers, num_wanted: Callable[[], int] = lambda: 1) -> None:
        self._team, self._transfers = team, transfers
        self.num_wanted = num_wanted

    def hear_of_missing(self, step: int) -> bool:
        """Return whether somebody has come to replace a lost member; all members hear the same. Raises world errors."""

        def hear() -> list[Facts]:
            newcomers = self.wait_for_missing() if self._team.place == 0 else ()
            return exchange(self._team.world, Facts(step=step, newcomers=newcomers))

        return bool(self._team.replica.as_one(hear)[0].newcomers)

    def wait_for_missing(self, linger_s: float = LINGER_S) -> tuple[str, ...]:
        """Return who has come to replace a lost member, as soon as there is one; nobody if all are here."""
        team, until = self._team, time.monotonic() + linger_s
        while team.stands and len(team.generation.members) < self.num_wanted() and time.monotonic() < until:
            team.membership.look_for_newcomers(every_s=LOOK_S)
            if team.membership.newcomers:
                return team.membership.newcomers
            time.sleep(LOOK_S)  # the store tells of no change to what is not known beforehand
        return ()

    def hand_over(self, step: int) -> None:
        """All ``step`` steps are done: newcomers get the rest of the state, and who comes now is told."""
        self._team.membership.say_over(step)
        try:
            self._transfers.wait_until_sent()
        except (WorldBrokenError, WorldClosedError) as error:
            logger.info("a newcomer did not get the state before the training was over: %s", error)
