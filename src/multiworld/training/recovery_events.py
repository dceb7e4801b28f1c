"""Say what happens to the members of a training: who was lost, how the others went on, and who came."""

from __future__ import annotations

import logging
import time

from ..errors import PeerLeftError, PeerSilentError, PeerStoppedError, WorldBrokenError
from .events import MemberLost, MembershipChanged, PipelinesChanged, RecoveryPhase, StateReceived
from .pipeline.seen import pipelines_seen
from .publishing import Publisher
from .recovery.records import Generation, Member
from .recovery.team import LOSSES, Team

PROGRAM_ERROR = "ProgramError"
"""The cause in ``MemberLost`` where no error of ours names it: the member lives, but its program gave up."""

logger = logging.getLogger(__name__)


class RecoveryEvents:
    """The engine's ``RecoveryObserver``. ``lease_s``: for how long a member is silent before it counts as lost."""

    def __init__(self, publisher: Publisher, team: Team, *, lease_s: float) -> None:
        self._publisher, self._team, self._lease_s = publisher, team, lease_s
        self._gave_up: Member | None = None
        """Whose program ended the world. Why, and whether it is lost, is known when the others have agreed."""
        self._told: set[str] = set()
        """The ids of the members whose loss in this recovery was told."""

    def recovery_began(self, step: int, error: WorldBrokenError | None) -> None:
        self._told.clear()
        if error is None:
            return
        place = self._team.place_of(error)
        self._gave_up = None
        lost_rank = -1
        if place >= 0:
            member = self._team.generation.members[place]
            lost_rank = member.rank
            self._told.add(member.id)
        if isinstance(error, PeerLeftError):  # its program left the loop over the steps
            logger.info("step %d: rank %d has left", step, lost_rank)
            return
        if place >= 0 and not isinstance(error, LOSSES):
            logger.info("step %d: rank %d has given its world up", step, lost_rank)
            self._gave_up = self._team.generation.members[place]
        else:
            logger.info("step %d: rank %d is lost: %s", step, lost_rank, error.cause)
            self._lost(lost_rank, step, type(error).__name__, error.cause)
        now = time.monotonic()
        broke_at = self._team.broke_at or now  # this thread may hear of it first
        silent_s = self._lease_s if isinstance(error, (PeerSilentError, PeerStoppedError)) else 0.0
        self.recovery_phase("detect", step, now - broke_at + silent_s)  # from the last sign of life to here

    def _lost(self, rank: int, step: int, cause: str, detail: str) -> None:
        self._publisher.publish(MemberLost, lost_rank=rank, step=step, cause=cause, detail=detail)

    def recovery_phase(self, name: str, step: int, took_s: float) -> None:
        if name == "agree" and self._team.lost:  # without a loss there may be no generation yet
            self._tell_further_losses(step)
        self._publisher.publish(RecoveryPhase, name=name, step=step, took_s=took_s)

    def _tell_further_losses(self, step: int) -> None:
        """Tell of those who were lost after the world had broken: they did not leave."""
        ranks = {each.id: each.rank for each in self._team.generation.members}
        for lost in self._team.lost:
            if lost.id in self._told or lost.id not in ranks or lost.cause == PeerLeftError.__name__:
                continue
            self._told.add(lost.id)
            logger.info("step %d: rank %d is lost, too: %s", step, ranks[lost.id], lost.detail)
            self._lost(ranks[lost.id], step, lost.cause, lost.detail)

    def generation_began(self, before: Generation | None, now: Generation, step: int) -> None:
        old = () if before is None else before.members
        came = [each for each in now.members if before is None or before.place_of(each.id) < 0]
        if before is None and not now.is_restart:  # the others have trained before this member came
            came = [each for each in came if each.id in now.stateless]
        gave_up, self._gave_up = self._gave_up, None
        if gave_up is not None and gave_up in old and now.place_of(gave_up.id) < 0:
            self._lost(gave_up.rank, step, PROGRAM_ERROR, "its program ended the training with an error")
        if now.assignment is not None:  # first, so that those who hear of the membership know what it trains
            self._publisher.publish(
                PipelinesChanged,
                step=step,
                num_layers=now.assignment.num_layers,
                pipelines=pipelines_seen(now),
                policy=now.assignment.policy,
                iteration_s=now.assignment.iteration_s,
                num_moved=sum(each.end - each.first for each in now.assignment.moves),
                tolerates=now.assignment.tolerates,
                needed=now.assignment.needed,
            )
        self._publisher.publish(
            MembershipChanged,
            step=step,
            ranks=tuple(each.rank for each in now.members),
            came=tuple(each.rank for each in came),
            gone=tuple(each.rank for each in old if now.place_of(each.id) < 0),
            members=tuple(each.id for each in now.members),
        )

    def state_received(self, step: int, size_bytes: int, sources: int, took_s: float) -> None:
        self._publisher.publish(StateReceived, step=step, size_bytes=size_bytes, sources=sources, took_s=took_s)
