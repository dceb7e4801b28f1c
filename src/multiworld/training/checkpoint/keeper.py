"""What a job does about checkpoints: after which steps it takes one, and which one it begins with."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from ..errors import CheckpointDamagedError, NoCommonCheckpointError
from ..events import CheckpointFailed, CheckpointLoaded, CheckpointSaved
from ..state import TrainingState
from .config import Checkpoint
from .finding import Found, candidates
from .loading import load
from .saver import CheckpointOutcome, CheckpointSaver

logger = logging.getLogger(__name__)

ENDING_S = 5.0
"""What a save gets when the program ends with an error."""

Publish = Callable[..., None]


class CheckpointKeeper:
    """Of one job. All calls on the training thread, between two steps."""

    def __init__(self, config: Checkpoint, *, job: str, member: str, state: TrainingState, publish: Publish) -> None:
        """``publish`` takes a class of ``TrainingEvent`` and its fields, but for those that all have."""
        self._config, self._member, self._state, self._publish = config, member, state, publish
        self._saver = CheckpointSaver(config, job=job, member=member, on_outcome=self._tell)
        self._found: list[Found] = []
        self._last_saved = -1
        self._generation = 0
        self._members: tuple[str, ...] = ()
        self._writers: tuple[str, ...] | None = None

    # ---- where a training begins

    def saved_step(self) -> int:
        """Return the step of the newest checkpoint that looks whole, or -1. Its files are not read yet.

        Raises CheckpointVersionError, or OSError if the directory cannot be read.
        """
        self._found = candidates(self._config.directory, hashes=False)
        return self._found[0].step if self._found else -1

    def restart(self, most: int | None = None) -> None:
        """Take the state from the newest whole checkpoint that ``saved_step`` saw, if any. Raises what ``load`` does.

        One that came later is not taken: other processes of this replica may not see it. ``most``: a process of this
        replica has a state of that step and can load no later one. Raises NoCommonCheckpointError if there is none up
        to that step here.
        """
        if not self._found:
            self.saved_step()
        for found in self._found:
            if most is not None and found.step > most:
                continue
            began = time.monotonic()
            try:
                load(found, self._state, hashes=self._config.verify)
            except CheckpointDamagedError as error:
                logger.warning("%s", error)
                continue
            self._last_saved = self._state.step
            self._publish(
                CheckpointLoaded,
                step=self._state.step,
                path=found.path,
                size_bytes=found.manifest.size_bytes,
                took_s=time.monotonic() - began,
            )
            return
        if most is not None:
            raise NoCommonCheckpointError(self._config.directory, most)

    # ---- while it runs

    def on_members(self, generation: int, members: Sequence[str], writers: Sequence[str] | None = None) -> None:
        """Hear in each step who has the state and trains on, in the order of the members.

        ``writers``: those of one replica, if each of its processes has another part of the state.
        """
        if (generation, tuple(members)) != (self._generation, self._members):
            self._generation, self._members = generation, tuple(members)
            self._writers = None if writers is None else tuple(writers)
            self._saver.on_members(members)

    def after_step(self, since: int, *, asked: bool = False) -> None:
        """A step was applied. ``since``: so many steps had been committed when a state could be saved last.

        All members call it alike; ``asked``: the step's facts ask for a checkpoint.
        """
        self._saver.poll()
        step = self._state.step
        if self._config.is_due(since, step, asked=asked):
            self._save(wait=False)
        else:
            self._saver.prepare(
                self._members, writers=self._writers
            )  # long before the first one is due: it takes seconds

    def close(self, *, is_complete: bool, has_failed: bool = False) -> None:
        """Let a save end. ``is_complete``: all steps are done, so their result is saved, too. Idempotent."""
        if is_complete and self._last_saved != self._state.step:
            self._save(wait=True)
        self._saver.close(ENDING_S if has_failed else None)

    def _save(self, *, wait: bool) -> None:
        step = self._state.step
        has_begun = self._saver.save(
            self._state.capture_to_save,
            step=step,
            generation=self._generation,
            members=self._members,
            writers=self._writers,
            wait=wait,
        )
        if has_begun:  # else the end of the training tries once more
            self._last_saved = step

    def _tell(self, outcome: CheckpointOutcome) -> None:
        if outcome.error:
            self._publish(CheckpointFailed, step=outcome.step, reason=outcome.error)
            return
        self._publish(
            CheckpointSaved,
            step=outcome.step,
            path=outcome.path,
            size_bytes=outcome.size_bytes,
            stall_s=outcome.stall_s,
            took_s=outcome.took_s,
        )
