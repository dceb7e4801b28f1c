"""Form one generation after the other until one has begun: its members agree, and have the state they begin with."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...errors import WorldBrokenError, WorldClosedError
from ..recovery.membership import ExcludedError
from ..recovery.records import Announcement, Generation
from ..recovery.team import Phase, Team
from ..recovery.transfer import DamagedStateError
from .memory import CopiesUnusableError

logger = logging.getLogger(__name__)


class Regrouping:
    """``announce``: what this member has. ``begin``: takes up a generation. ``lose_state``: the others are ahead."""

    def __init__(
        self,
        team: Team,
        *,
        announce: Callable[[], Announcement],
        begin: Callable[[Generation], None],
        lose_state: Callable[[], None],
    ) -> None:
        self._team, self._announce, self._begin, self._lose_state = team, announce, begin, lose_state

    def regroup(self, phase: Phase) -> tuple[Generation, bool]:
        """Return the generation that has begun, and whether the others had gone on without this member before.

        Raises what ``Membership.agree`` raises, but ExcludedError.
        """
        team, was_excluded = self._team, False
        while True:
            try:
                generation = team.advance(self._announce, phase)
                self._begin(generation)
                return generation, was_excluded
            except ExcludedError:
                logger.warning("the others went on without this member; it comes back as a newcomer")
                was_excluded = True
                self._lose_state()
                team.become_newcomer()
            except (WorldBrokenError, WorldClosedError) as broken:  # while all got the state that they begin with
                if isinstance(broken, WorldBrokenError):
                    team.note(broken)
            except DamagedStateError as damaged:
                logger.warning("%s; it is asked for again", damaged)
                team.world.abort()
            except CopiesUnusableError as unusable:
                logger.warning("%s; the members agree on another one", unusable)
                team.world.abort()
