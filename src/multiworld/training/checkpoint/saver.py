"""Take checkpoints while the training goes on: stage between two steps, write in another process, say how it went."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..state import StateDict
from .config import Checkpoint
from .flat import Flattener
from .orders import Write, WriteFailed
from .sharing import attempt_of, writers_of
from .staging import Staging
from .writer import CheckpointWriter
from .writing import reason_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CheckpointOutcome:
    """How one checkpoint went. Not ``error``: it is whole, at ``path``. Times as in ``events.CheckpointSaved``."""

    step: int
    path: str = ""
    size_bytes: int = 0
    stall_s: float = 0.0
    took_s: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class _Attempt:
    step: int
    writers: tuple[str, ...]
    began: float
    stall_s: float


class CheckpointSaver:
    """Of one training process. All calls on the training thread; none raises for a save that fails, and none waits
    for the disk, but for ``close``.

    ``on_outcome`` hears of each checkpoint once: the first writer of success, each writer of its own failure.
    """

    def __init__(
        self, config: Checkpoint, *, job: str, member: str, on_outcome: Callable[[CheckpointOutcome], None]
    ) -> None:
        self._config, self._job, self._member, self._on_outcome = config, job, member, on_outcome
        self._flattener = Flattener()
        self._staging = Staging()
        self._writer = CheckpointWriter()
        self._attempt: _Attempt | None = None
        self._has_written = False

    @property
    def writer_pid(self) -> int | None:
        return self._writer.pid

    def on_members(self, members: Sequence[str]) -> None:
        """Hear who the members are now: a checkpoint that waits for another writer's part need not wait any longer."""
        if self._attempt is not None:
            gone = tuple(index for index, member in enumerate(self._attempt.writers) if member not in members)
            if gone:
                self._writer.gone(gone)

    def prepare(self, members: Sequence[str], *, writers: Sequence[str] | None = None) -> None:
        """Start the process that writes, if this member is a writer: then no checkpoint waits for its start."""
        if self._member in self._chosen(members, writers):
            try:
                self._writer.start()
            except OSError as error:
                logger.warning("cannot start the process that writes checkpoints: %s", reason_of(error))

    def save(
        self,
        capture: Callable[[], StateDict],
        *,
        step: int,
        generation: int,
        members: Sequence[str],
        writers: Sequence[str] | None = None,
        wait: bool = False,
    ) -> bool:
        """Begin a checkpoint of what ``capture`` returns, if this member is one of its writers. False: it has failed.

        ``step``: so many steps are committed. ``writers``: those that hold different parts of a sharded state; by
        default so many members as the configuration says. All arguments are equal on all of them. ``wait``: let a
        checkpoint that is still being written end first; else this one is left out, and that is a failure.
        """
        chosen = self._chosen(members, writers)
        if self._member not in chosen:
            return True
        began = time.monotonic()
        self.poll(self._config.timeout_s if wait else 0.0)
        if self._attempt is not None:
            busy_s = began - self._attempt.began
            advice = "raise every_steps, or have more writers" if self._has_written else "its process has just started"
            reason = f"the one of step {self._attempt.step} is still being written, after {busy_s:.1f} s; {advice}"
            self._failed(step, reason)
            return False
        index = chosen.index(self._member)
        try:
            staged = self._staging.take(self._flattener.flatten(capture()), writer=index, num_writers=len(chosen))
            order = Write(
                directory=self._config.directory,
                job=self._job,
                step=step,
                attempt=attempt_of(step, generation, chosen),
                writer=index,
                num_writers=len(chosen),
                keep=self._config.keep,
                sync=self._config.sync,
                timeout_s=self._config.timeout_s,
            )
            self._writer.write(order, staged, self._staging.fd)
        except Exception as error:  # a part's state_dict may hold anything, and the training itself is well
            logger.debug("checkpoint of step %d", step, exc_info=True)
            self._failed(step, reason_of(error))
            return False
        self._attempt = _Attempt(step, chosen, began, time.monotonic() - began)
        return True

    def poll(self, timeout_s: float = 0.0) -> None:
        """Hear how the last one went; to be called after each step. It waits only as long as it is told to."""
        if self._attempt is None:
            return
        report = self._writer.poll(timeout_s)
        if report is None:
            return
        attempt, self._attempt = self._attempt, None
        self._has_written = True
        if isinstance(report, WriteFailed):
            self._failed(attempt.step, report.reason)
            return
        if report.problem:
            logger.warning("%s: older checkpoints stay, which %r has: %s", report.path, self._config, report.problem)
        if report.path:
            took_s = time.monotonic() - attempt.began
            self._on_outcome(
                CheckpointOutcome(
                    step=attempt.step,
                    path=report.path,
                    size_bytes=report.size_bytes,
                    stall_s=attempt.stall_s,
                    took_s=took_s,
                )
            )

    def close(self, timeout_s: float | None = None) -> None:
        """Let the last one end, for ``timeout_s`` (by default the configuration's), and give everything back.

        Idempotent.
        """
        self.poll(self._config.timeout_s if timeout_s is None else timeout_s)
        if self._attempt is not None:
            attempt, self._attempt = self._attempt, None
            self._failed(attempt.step, "the training ended before it was written")
        self._writer.close()
        self._staging.close()

    def _chosen(self, members: Sequence[str], writers: Sequence[str] | None) -> tuple[str, ...]:
        return tuple(writers) if writers is not None else writers_of(members, self._config.writers)

    def _failed(self, step: int, reason: str) -> None:
        logger.warning("no checkpoint of step %d in %s: %s", step, self._config.directory, reason)
        self._on_outcome(CheckpointOutcome(step=step, error=reason))
