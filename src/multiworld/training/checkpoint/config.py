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
    """

    dir: str | os.PathLike[str]
    every_steps: int = 1000
    keep: int = 3
    writers: int = 1
    sync: bool = True
    verify: bool = True
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if not isinstance(self.dir, (str, os.PathLike)) or not os.fspath(self.dir):
            raise TypeError(f"dir={self.dir!r}: give the path of a directory that all hosts share")
        for name, least in (("every_steps", 1), ("keep", 1), ("writers", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}={value!r}: give a whole number")
            if value < least:
                raise ValueError(f"{name}={value}: give {least} or more")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s={self.timeout_s}: give seconds, more than 0")
        object.__setattr__(self, "dir", os.path.abspath(os.fspath(self.dir)))

    @property
    def directory(self) -> str:
        """The absolute path of ``dir``."""
        return os.fspath(self.dir)

    @property
    def agreed(self) -> tuple[int, int]:
        """What must be equal on all ranks."""
        return self.every_steps, self.writers

    def is_due(self, before: int, now: int, *, asked: bool = False) -> bool:
        """Whether there is a checkpoint after ``now`` committed steps. ``before``: those of the last chance for one.

        ``asked``: a member's facts ask for one.
        """
        return asked or now // self.every_steps > before // self.every_steps
