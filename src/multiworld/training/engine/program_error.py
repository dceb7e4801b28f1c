"""An error that the program raised in a step: the other members end with the same one."""

from __future__ import annotations

import traceback

from ...wire.shortened import end
from ..data.base import StepLoader
from ..errors import LoaderWorkerError, PoisonedStepError, SampleError
from ..recovery.records import Announcement
from ..recovery.team import Team

MAX_TRIES = 3
MAX_TEXT = 4000


def tell_others(team: Team, loader: StepLoader, step: int, error: Exception) -> None:
    """Raises PoisonedStepError if programs have raised in this step ``MAX_TRIES`` times."""
    text = end("".join(traceback.format_exception(error)), MAX_TEXT)
    said = f"{type(error).__name__}: {error}"
    tries = team.membership.say_raised(
        Announcement(member=team.membership.member, step=step, raised=said, traceback=text)
    )
    if team.stands:  # else nobody waits in it: a recovery may have ended without a new one
        team.world.abort()
    if tries >= MAX_TRIES:
        samples = tuple(sample for batch in loader.samples(step) for sample in batch)
        if isinstance(error, SampleError | LoaderWorkerError):
            samples = error.samples
        raise PoisonedStepError(step, tries, said, samples) from error
