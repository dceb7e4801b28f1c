"""What a user sets for checkpoints, and which steps have one. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Checkpoint:
    """Where checkpoints go, how often they are taken, and how many stay.

    ``dir``: a directory that all hosts share; it is made if it does not exist. ``every_steps``: after so many steps
    there is one. ``keep``: so many newest ones stay. ``writers``: so many members share the writing of what all of them
    have; a save fails if one of its writers dies. Of replicas of several processes, one writes: each process its part.
    ``sync``: a checkpoint counts only when its bytes are on the disk, so it outlives the host, too. ``verify``: compare
    the hashes of all files before one is loaded. ``timeout_s``: the first writer waits so long for the others' parts.

    ``copies``: between checkpoints, each process of a replica of several also keeps its part of the state in the memory
    of its host, and in that of so many others, for the case that all owners of a part are lost. ``copy_every_steps``:
    how often; by default ten times as often as there are checkpoints.
    """

    dir: str | os.PathLike[str]
    every_steps: int = 1000
    keep: int = 3
    writers: int = 1
    sync: bool = True
    verify: bool = True
    timeout_s: float = 600.0
    copies: int = 0
    copy_every_steps: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.dir, (str, os.PathLike)) or not os.fspath(self.dir):
            raise TypeError(f"dir={self.dir!r}: give the path of a directory that all hosts share")
        for name, least in (("every_steps", 1), ("keep", 1), ("writers", 1), ("copies", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}={value!r}: give a whole number")
            if value < least:
                raise ValueError(f"{name}={value}: give {least} or more")
        self._check_copy_every_steps()
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s={self.timeout_s}: give seconds, more than 0")
        object.__setattr__(self, "dir", os.path.abspath(os.fspath(self.dir)))

    def _check_copy_every_steps(self) -> None:
        every = self.copy_every_steps
        if every is None:
            return
        if isinstance(every, bool) or not isinstance(every, int):
            raise TypeError(f"copy_every_steps={every!r}: give a whole number, or None")
        if not self.copies:
            raise ValueError(f"copy_every_steps={every} needs copies=1, and there are none")
        if not 1 <= every <= self.every_steps:
            raise ValueError(
                f"copy_every_steps={every}: give 1 to every_steps={self.every_steps}, as the disk has newer ones else"
            )

    @property
    def copy_interval(self) -> int:
        """How many steps there are between two copies in memory."""
        return self.copy_every_steps or max(1, self.every_steps // 10)

    @property
    def directory(self) -> str:
        """The absolute path of ``dir``."""
        return os.fspath(self.dir)

    @property
    def agreed(self) -> tuple[int, ...]:
        """What must be equal on all ranks."""
        return self.every_steps, self.writers, self.copies, self.copy_interval

    def is_due(self, before: int, now: int, *, asked: bool = False) -> bool:
        """Whether there is a checkpoint after ``now`` committed steps. ``before``: those of the last chance for one.

        ``asked``: a member's facts ask for one.
        """
        return asked or now // self.every_steps > before // self.every_steps
